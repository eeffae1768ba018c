"""Stage `measure_speed`: one cell, so that nothing else runs beside what is timed (the report's Table I)."""

from pathlib import Path

from pipelines.engine.cells import Cell
from pipelines.engine.config import Config
from pipelines.engine.stage import Stage
from pipelines.styles import PHOTOS, model_of, normalized, painting_of
from tasks.style.evaluation.measure_speed import SpeedParams, measure_speed

SPEED = Path("results/style/speed.csv")
PARTS = Path("build/speed")


def run(stage: Stage) -> None:
    """Leave `speed.csv`."""
    directories = stage.compute([_cell(stage.config)], PARTS, gpu=True)
    stage.tabulate([directory / "speed.csv" for directory in directories], SPEED)


def _cell(config: Config) -> Cell:
    speed, transfer = config.style.speed, config.style.transfer
    style = config.style.training.styles[0]
    params = SpeedParams(speed, transfer.settings, config.style.stylize.precision)
    inputs: dict[str, Path] = {
        "photos": PHOTOS,
        "painting": painting_of(style),
        "model": model_of(style),
    }
    inputs |= {backbone: normalized(backbone) for backbone in speed.backbones}
    return Cell("speed", measure_speed, params, inputs, {"style": style})
