"""The step `prune_style` has one cell for each pruned network of a style."""

from pipelines.catalog.paths import STYLE_MASKS
from pipelines.catalog.styles import PrunedStyle, pruned_styles, training_inputs, training_of
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from singleshot.pruning.pruners import module_of
from tasks.prune_style import MaskSettings, PruneStyleParams, prune_style


def run(step: Step, config: Config) -> None:
    """Write `models/style_masks/<style>/<pruner>-<sparsity>/`: the mask, and what it keeps of each layer."""
    cells = [cell(config, network) for network in pruned_styles(config)]
    step.compute(cells, STYLE_MASKS, gpu=True)


def cell(config: Config, network: PrunedStyle) -> Cell:
    """The cell that makes the mask of a style's pruned network."""
    pruning = config.style.pruning
    mask = MaskSettings(network.pruner, network.sparsity, pruning.photos, pruning.iterations)
    params = PruneStyleParams(training_of(config, network.style), mask)
    inputs, modules = training_inputs(config, network.style), (module_of(network.pruner),)
    return Cell(network.name, prune_style, params, inputs, network.tags, modules=modules)
