"""Controls of pruners: does it matter which weights are kept, or only how many in each layer?

A control is one short function from (masks, generator) to masks, listed in :data:`CONTROLS`. For the name
`<pruner>-<control>`, the pruner makes masks, which the control then replaces.
"""

from collections.abc import Callable

import torch

from tasks.pruning.objective import Masks


def shuffled(masks: Masks, generator: torch.Generator) -> Masks:
    """Permute each layer's mask: as many weights are kept, but at random positions.

    Su et al. 2020, *Sanity-checking pruning methods*; Frankle et al. 2021, *Pruning neural networks at
    initialization: why are we missing the mark?*
    """
    return {layer: _permuted(mask, generator) for layer, mask in masks.items()}


def _permuted(mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    order = torch.randperm(mask.numel(), generator=generator, device=generator.device)
    return mask.flatten()[order.to(mask.device)].view_as(mask)


CONTROLS: dict[str, Callable[[Masks, torch.Generator], Masks]] = {"shuffled": shuffled}
