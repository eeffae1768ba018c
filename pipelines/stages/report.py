"""Stage `report`: figures of the results, a cell each for agents, Version 1 of styles, and deployment."""

from pathlib import Path

from pipelines.engine.cells import Cell
from pipelines.engine.stage import Stage
from tasks.reporting.deployment_figures import DeploymentFigureParams, draw_deployment_figures
from tasks.reporting.figures import FigureParams, draw_figures
from tasks.reporting.style_figures import StyleFigureParams, draw_style_figures

SCORES = Path("results/offline_rl/scores.csv")
STUDIES = Path("results/style/studies.csv")
TIMINGS = Path("results/deployment/timings.csv")
PICTURES = Path("results/style/gatys")
REPORT = Path("report")


def run(stage: Stage) -> None:
    """Leave `report/figures/scores.png`, `report/style/` and `report/deployment/`, a figure each network."""
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
            Cell(
                "deployment",
                draw_deployment_figures,
                DeploymentFigureParams(profile),
                {"timings": TIMINGS},
            ),
        ],
        REPORT,
        brief=True,
    )
