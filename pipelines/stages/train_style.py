"""The step `train_style` has one cell for each style, and one for each of its pruned networks."""

from pipelines.catalog.paths import STYLES
from pipelines.catalog.styles import PrunedStyle, pruned_styles, style_tags, training_inputs, training_of
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from tasks.train_style import train_style


def run(step: Step, config: Config) -> None:
    """Write `models/styles/<style>/`: the network, its checkpoints, previews, contact sheet and losses.

    The files of a pruned network are in `models/styles/<style>/<pruner>-<sparsity>/`.
    """
    dense = [_dense(config, style) for style in config.style.training.styles]
    pruned = [_pruned(config, network) for network in pruned_styles(config)]
    step.compute([*dense, *pruned], STYLES, gpu=True)


def _dense(config: Config, style: str) -> Cell:
    return Cell(
        style, train_style, training_of(config, style), training_inputs(config, style), style_tags(style)
    )


def _pruned(config: Config, network: PrunedStyle) -> Cell:
    inputs = {**training_inputs(config, network.style), "mask": network.mask}
    return Cell(network.name, train_style, training_of(config, network.style), inputs, network.tags)
