"""The step `prune_style` has one cell for each pruned network of a style."""

from pipelines.catalog.paths import STYLE_MASKS
from pipelines.catalog.styles import PrunedStyle, pruned_styles, training_inputs, training_of
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from tasks.prune_style import MaskSettings, PruneStyleParams, prune_style


def run(step: Step, config: Config) -> None:
    """Write `models/style_masks/<style>/<pruner>-<sparsity>/`: the mask, and what it keeps of each layer."""
    cells = [_cell(config, network) for network in pruned_styles(config)]
    step.compute(cells, STYLE_MASKS, gpu=True)


def _cell(config: Config, network: PrunedStyle) -> Cell:
    pruning = config.style.pruning
    mask = MaskSettings(network.pruner, network.sparsity, pruning.photos, pruning.iterations)
    params = PruneStyleParams(training_of(config, network.style), mask)
    return Cell(network.name, prune_style, params, training_inputs(config, network.style), network.tags)
