"""The stage `evaluate` has one cell."""

import shutil

from pipelines.catalog.paths import EVALUATION, PROFILES, SCORES, STATISTICS
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Stage
from tasks.reporting.evaluate_scores import evaluate_scores


def run(stage: Stage, config: Config) -> None:
    """Write `statistics.csv`, `profiles.csv` and `evaluation.json`."""
    cell = Cell("statistics", evaluate_scores, config.offline_rl.statistics, {"scores": SCORES})
    (directory,) = stage.compute([cell])
    for path in (STATISTICS, PROFILES, EVALUATION):
        shutil.copyfile(directory / path.name, path)
