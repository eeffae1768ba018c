"""Controls of pruners: does it matter which weights are kept, or only how many in each layer?

A control is one short function from (masks, observed, generator) to masks, listed in :data:`CONTROLS`. For
the name `<pruner>-<control>`, the pruner makes masks, which the control then replaces. `observed` has the
layers that read what the network observes, an agent's state or a picture. Each has the number of these
inputs, which are its first ones.
"""

from collections.abc import Callable, Mapping

import torch

from singleshot.pruning.pruner import Masks

Observed = Mapping[str, int]
"""Number of coordinates of the state (or channels of the picture) by layer that reads them."""
Control = Callable[[Masks, Observed, torch.Generator], Masks]


def shuffled(masks: Masks, observed: Observed, generator: torch.Generator) -> Masks:  # noqa: ARG001
    """Permute each layer's mask: as many weights are kept, but at random positions.

    Su et al. 2020, *Sanity-checking pruning methods*; Frankle et al. 2021, *Pruning neural networks at
    initialization: why are we missing the mark?*
    """
    return {layer: _permuted(mask, generator) for layer, mask in masks.items()}


def shuffled_first(masks: Masks, observed: Observed, generator: torch.Generator) -> Masks:
    """Permute only the masks of the layers that read the state: does it matter what they read?"""
    return masks | {layer: _permuted(masks[layer], generator) for layer in masks if layer in observed}


def shuffled_rest(masks: Masks, observed: Observed, generator: torch.Generator) -> Masks:
    """Permute the masks of all layers but those that read the state."""
    return masks | {layer: _permuted(masks[layer], generator) for layer in masks if layer not in observed}


def blind(masks: Masks, observed: Observed, generator: torch.Generator) -> Masks:  # noqa: ARG001
    """Keep every weight, except those of coordinates of which a layer's mask keeps no weight at all.

    The network is dense, but it is as blind to the state as the pruned one, layer by layer. Its other inputs,
    actions and latents, are all read.
    """
    dense = {layer: torch.ones_like(mask) for layer, mask in masks.items()}
    for layer, count in observed.items():
        seen = masks[layer].transpose(0, 1).flatten(1).any(dim=1)[:count]  # (out, in) or (out, in, h, w)
        dense[layer].transpose(0, 1)[:count][~seen] = False
    return dense


def _permuted(mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    order = torch.randperm(mask.numel(), generator=generator, device=generator.device)
    return mask.flatten()[order.to(mask.device)].view_as(mask)


CONTROLS: dict[str, Control] = {
    "shuffled": shuffled,
    "shuffled-first": shuffled_first,
    "shuffled-rest": shuffled_rest,
    "blind": blind,
}
