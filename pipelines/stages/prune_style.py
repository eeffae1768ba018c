"""Stage `prune_style`: one cell a pruned network of a style; its mask, before any training."""

from pipelines.engine.cells import Cell
from pipelines.engine.config import Config
from pipelines.engine.stage import Stage
from pipelines.styles import STYLE_MASKS, PrunedStyle, pruned_styles, training_inputs, training_of
from tasks.style.pruning.prune_style import MaskSettings, PruneStyleParams, prune_style


def run(stage: Stage) -> None:
    """Leave `models/style_masks/<style>/<pruner>-<sparsity>/`: the mask, and what it leaves of each layer."""
    cells = [_cell(stage.config, network) for network in pruned_styles(stage.config)]
    stage.compute(cells, STYLE_MASKS, gpu=True)


def _cell(config: Config, network: PrunedStyle) -> Cell:
    pruning = config.style.pruning
    mask = MaskSettings(network.pruner, network.sparsity, pruning.photos, pruning.iterations)
    params = PruneStyleParams(training_of(config, network.style), mask)
    return Cell(network.name, prune_style, params, training_inputs(network.style), network.tags)
