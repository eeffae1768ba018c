"""Stage `train_style`: Version 2; one cell a style."""

from dataclasses import replace

from pipelines.engine.cells import Cell
from pipelines.engine.config import Config
from pipelines.engine.stage import Stage
from pipelines.styles import PHOTOS, STYLES, painting_of, trained
from tasks.style.johnson import TrainStyleParams, train_style


def run(stage: Stage) -> None:
    """Leave `models/styles/<style>/`: the network, its checkpoints, previews, contact sheet and losses."""
    stage.compute(
        [_cell(stage.config, style) for style in stage.config.style.training.styles], STYLES, gpu=True
    )


def _cell(config: Config, style: str) -> Cell:
    training = config.style.training
    weight = training.style_weights.get(style, training.johnson.style_weight)
    params = TrainStyleParams(style, replace(training.johnson, style_weight=weight), training.seed)
    inputs = {"photos": PHOTOS, "painting": painting_of(style), "backbone": trained("vgg16")}
    return Cell(style, train_style, params, inputs, {"style": style})
