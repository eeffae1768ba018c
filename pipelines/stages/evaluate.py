"""The step `evaluate` has one cell."""

import shutil

from pipelines.catalog.paths import EVALUATION, PROFILES, SCORES, STATISTICS
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from tasks.reporting.evaluate_scores import evaluate_scores


def run(step: Step, config: Config) -> None:
    """Write `statistics.csv`, `profiles.csv` and `evaluation.json`."""
    cell = Cell("statistics", evaluate_scores, config.offline_rl.statistics, {"scores": SCORES})
    (directory,) = step.compute([cell])
    for path in (STATISTICS, PROFILES, EVALUATION):
        shutil.copyfile(directory / path.name, path)
