"""The step `measure_speed` has one cell, so that nothing runs beside what is timed."""

from pathlib import Path

from pipelines.catalog.paths import PHOTOS, SPEED
from pipelines.catalog.styles import model_of, normalized, painting_of
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from tasks.measure_speed import SpeedParams, measure_speed
from tasks.tables import concatenate


def run(step: Step, config: Config) -> None:
    """Write `speed.csv` (the report's Table I)."""
    directories = step.compute([_cell(config)], gpu=True)
    concatenate([directory / "speed.csv" for directory in directories], SPEED)


def _cell(config: Config) -> Cell:
    speed, transfer = config.style.speed, config.style.transfer
    style = config.style.training.styles[0]
    params = SpeedParams(speed, transfer.settings, config.style.stylize.precision)
    inputs: dict[str, Path] = {"photos": PHOTOS, "painting": painting_of(style), "model": model_of(style)}
    inputs |= {backbone: normalized(backbone) for backbone in speed.backbones}
    return Cell("speed", measure_speed, params, inputs, {"style": style})
