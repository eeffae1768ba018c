"""What a mask leaves of each layer: the data of the paper's Figure 3."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LayerCount:
    """Weights of one layer, before and after pruning. `weights_kept` is 0 where the layer was left empty."""

    network: str
    layer: str
    weights_total: int
    weights_kept: int


def count_layers(masks: Mapping[str, Mapping[str, Tensor]]) -> list[LayerCount]:
    """Counts of each layer's mask, by network and layer in the order of `masks`."""
    return [
        LayerCount(network, layer, mask.numel(), int(mask.count_nonzero()))
        for network, layers in masks.items()
        for layer, mask in layers.items()
    ]
