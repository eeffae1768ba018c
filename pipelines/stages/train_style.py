"""Stage `train_style`: networks after Johnson et al.; a cell for each style, and for each pruned network."""

from pipelines.engine.cells import Cell
from pipelines.engine.config import Config
from pipelines.engine.stage import Stage
from pipelines.styles import STYLES, PrunedStyle, pruned_styles, style_tags, training_inputs, training_of
from tasks.style.train_style import train_style


def run(stage: Stage) -> None:
    """Leave `models/styles/<style>/`: the network, its checkpoints, previews, contact sheet and losses.

    A pruned network's are in `models/styles/<style>/<pruner>-<sparsity>/`.
    """
    dense = [_dense(stage.config, style) for style in stage.config.style.training.styles]
    pruned = [_pruned(stage.config, network) for network in pruned_styles(stage.config)]
    stage.compute([*dense, *pruned], STYLES, gpu=True)


def _dense(config: Config, style: str) -> Cell:
    return Cell(style, train_style, training_of(config, style), training_inputs(style), style_tags(style))


def _pruned(config: Config, network: PrunedStyle) -> Cell:
    inputs = {**training_inputs(network.style), "mask": network.mask}
    return Cell(network.name, train_style, training_of(config, network.style), inputs, network.tags)
