"""Stage `evaluate`: one cell; what pruning leaves of the agents' scores, with intervals."""

import shutil
from pathlib import Path

from pipelines.engine.cells import Cell
from pipelines.engine.stage import Stage
from tasks.reporting.evaluate_scores import evaluate_scores

SCORES = Path("results/offline_rl/scores.csv")
RESULTS = Path("results/offline_rl")
PARTS = Path("build/evaluate")


def run(stage: Stage) -> None:
    """Leave `statistics.csv`, `profiles.csv` and `evaluation.json`."""
    cell = Cell("statistics", evaluate_scores, stage.config.offline_rl.statistics, {"scores": SCORES})
    (directory,) = stage.compute([cell], PARTS)
    for table in ("statistics.csv", "profiles.csv"):
        stage.tabulate([directory / table], RESULTS / table)
    shutil.copyfile(directory / "evaluation.json", RESULTS / "evaluation.json")
    shutil.rmtree(PARTS)
