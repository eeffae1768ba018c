"""Stage `report`: figures of the results."""

from pathlib import Path

from pipelines.engine.cells import Cell
from pipelines.engine.stage import Stage
from tasks.reporting.figures import FigureParams, draw_figures

SCORES = Path("results/offline_rl/scores.csv")
REPORT = Path("report")


def run(stage: Stage) -> None:
    """Leave `report/figures/scores.png`."""
    stage.compute(
        [Cell("figures", draw_figures, FigureParams(stage.config.profile), {"scores": SCORES})], REPORT
    )
