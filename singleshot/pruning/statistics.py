"""Counts of the weights that masks keep in each layer: the data of the paper's Figure 3."""

from collections.abc import Mapping
from dataclasses import dataclass

from singleshot.pruning.objective import Masks, Parts


@dataclass(frozen=True)
class LayerCount:
    """Weights of one layer, before and after pruning. `weights_kept` is 0 where the layer was left empty."""

    network: str
    part: str
    """Name of the network's part that the layer belongs to; the network's name if it has no parts."""
    layer: str
    weights_total: int
    weights_kept: int


def count_layers(masks: Mapping[str, Masks], parts: Parts | None = None) -> list[LayerCount]:
    """Weight counts of each layer that has weights, in the order of networks and layers in `masks`."""
    part_of = {
        (network, layer): part
        for network, own in (parts or {}).items()
        for part, layers in own.items()
        for layer in layers
    }
    return [
        LayerCount(
            network,
            part_of.get((network, layer), network),
            layer,
            mask.numel(),
            int(mask.count_nonzero()),
        )
        for network, layers in masks.items()
        for layer, mask in layers.items()
        if mask.numel()
    ]
