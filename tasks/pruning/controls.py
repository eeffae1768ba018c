"""Controls of a pruner: is it which weights it keeps that counts, or how many of each layer?

A control is one short function from (masks, generator) to masks, listed in :data:`CONTROLS`. The pruner
`<pruner>-<control>` makes the pruner's masks and then has the control replace them.
"""

from collections.abc import Callable

import torch

from tasks.pruning.objective import Masks


def shuffled(masks: Masks, generator: torch.Generator) -> Masks:
    """Each layer's mask, permuted: it keeps as many weights, but none of the pruner's choice among them.

    Su et al. 2020, *Sanity-checking pruning methods*; Frankle et al. 2021, *Pruning neural networks at
    initialization: why are we missing the mark?*
    """
    return {layer: _permuted(mask, generator) for layer, mask in masks.items()}


def _permuted(mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    order = torch.randperm(mask.numel(), generator=generator, device=generator.device)
    return mask.flatten()[order.to(mask.device)].view_as(mask)


CONTROLS: dict[str, Callable[[Masks, torch.Generator], Masks]] = {"shuffled": shuffled}
