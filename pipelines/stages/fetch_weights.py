"""Stage `fetch_weights`: one cell a backbone, and one for the heads of LPIPS."""

from typing import get_args

from pipelines.engine.cells import Cell
from pipelines.engine.config import Config
from pipelines.engine.stage import Stage
from pipelines.styles import BACKBONES, PHOTOS
from tasks.style.backbones import BackboneName
from tasks.style.datasets.fetch_weights import WeightsParams, fetch_weights


def run(stage: Stage) -> None:
    """Leave `models/backbones/<name>/`: weights as trained, weights normalised, and a card."""
    names = (*get_args(BackboneName), "lpips")
    stage.compute([_cell(stage.config, name) for name in names], BACKBONES, gpu=True)


def _cell(config: Config, name: BackboneName) -> Cell:
    weights = config.style.weights
    params = WeightsParams.of(name, weights.source, weights.normalization)
    return Cell(name, fetch_weights, params, params.inputs(PHOTOS), {"backbone": name})
