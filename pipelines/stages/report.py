"""Stage `report`: figures of the results, one cell for agents and one for Version 1 of style transfer."""

from pathlib import Path

from pipelines.engine.cells import Cell
from pipelines.engine.stage import Stage
from tasks.reporting.figures import FigureParams, draw_figures
from tasks.reporting.style_figures import StyleFigureParams, draw_style_figures

SCORES = Path("results/offline_rl/scores.csv")
STUDIES = Path("results/style/studies.csv")
PICTURES = Path("results/style/gatys")
REPORT = Path("report")


def run(stage: Stage) -> None:
    """Leave `report/figures/scores.png`, and `report/style/`, the figures of the studies."""
    profile = stage.config.profile
    stage.compute(
        [
            Cell("figures", draw_figures, FigureParams(profile), {"scores": SCORES}),
            Cell(
                "style",
                draw_style_figures,
                StyleFigureParams(profile),
                {"studies": STUDIES, "pictures": PICTURES},
            ),
        ],
        REPORT,
    )
