"""The step `fetch_weights` has one cell for each backbone, and one for the heads of LPIPS."""

from typing import get_args

from pipelines.catalog.paths import BACKBONES, PHOTOS
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from singleshot.style.backbones import BackboneName
from tasks.fetch_weights import WeightsParams, fetch_weights


def run(step: Step, config: Config) -> None:
    """Write `models/backbones/<name>/`: weights as trained, normalised weights, and a card."""
    names = (*get_args(BackboneName), "lpips")
    step.compute([_cell(config, name) for name in names], BACKBONES, gpu=True)


def _cell(config: Config, name: BackboneName) -> Cell:
    weights = config.style.weights
    params = WeightsParams.of(name, weights.source, weights.normalization)
    return Cell(name, fetch_weights, params, params.inputs(PHOTOS), {"backbone": name})
