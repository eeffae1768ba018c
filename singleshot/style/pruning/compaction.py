"""Compaction: turns a pruned style network into a smaller dense one, without its useless channels."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from singleshot.style.transformer_net import Residual, TransformerNet


@torch.no_grad()
def compact(network: TransformerNet) -> TransformerNet:
    """Make a dense network that computes the same function with the fewest channels.

    Zeros in kernels are taken for pruned weights. A channel is removed

    - if all kernels that compute it are zero. It is then a constant, which is the shift β of the norm behind
      it. Reflection pads a constant with itself, the next convolution turns it into another constant, and the
      norm behind that convolution subtracts this constant with the mean. The last convolution has no norm, so
      its response to relu(β) is added to its bias.
    - if all kernels that read it are zero, since then nothing depends on it.

    Removing a channel may leave others in one of these states; they are removed too. All residual blocks add
    to the same channels. One of these is removed if no block and no later layer reads it, or if it is still
    constant wherever it is read. A block that adds nothing but constants is removed as a whole. Any other
    layer keeps at least one channel, since a convolution can't have none.

    The result is exact except for rounding, because its sums have fewer terms.
    """
    parts = _Parts.of(copy.deepcopy(network))
    parts.ignore_constants()
    parts.mute_unread()
    return parts.shrunk()


@dataclass(frozen=True)
class _Layer:
    """A convolution and the norm behind it; the last one has none."""

    conv: nn.Conv2d
    norm: nn.InstanceNorm2d | None

    @property
    def constant(self) -> Tensor:
        """Mask of the output channels that are constant: bool (O)."""
        return ~self.conv.weight.flatten(1).any(1)

    @property
    def read(self) -> Tensor:
        """Mask of the input channels that the layer reads: bool (I)."""
        return self.conv.weight.transpose(0, 1).flatten(1).any(1)

    def ignore(self, channels: Tensor) -> None:
        """Stop reading these input channels."""
        self.conv.weight[:, channels] = 0

    def mute(self, channels: Tensor) -> None:
        """Make these output channels constant."""
        self.conv.weight[channels] = 0

    def shrink(self, inputs: Tensor, outputs: Tensor) -> None:
        """Keep only the channels at these positions."""
        conv, norm = self.conv, self.norm
        assert conv.bias is not None
        conv.weight = nn.Parameter(conv.weight[outputs][:, inputs])
        conv.bias = nn.Parameter(conv.bias[outputs])
        conv.in_channels, conv.out_channels = len(inputs), len(outputs)
        if norm is not None:
            norm.weight, norm.bias = nn.Parameter(norm.weight[outputs]), nn.Parameter(norm.bias[outputs])
            norm.num_features = len(outputs)


@dataclass(frozen=True)
class _Parts:
    """A network's layers."""

    network: TransformerNet
    down: Sequence[_Layer]
    """Layers from the picture to the residual blocks."""
    blocks: Sequence[tuple[_Layer, _Layer]]
    """The two layers of each block: one that reads the sum so far, and one whose output is added to it."""
    up: Sequence[_Layer]
    """Layers from the blocks to the stylised picture."""

    @classmethod
    def of(cls, network: TransformerNet) -> "_Parts":
        stages = list(network.stages)
        residual = [i for i, stage in enumerate(stages) if isinstance(stage, Residual)]
        blocks = [_layers(list(stages[i].body)) for i in residual]  # type: ignore[arg-type]
        down, up = _layers(stages[: residual[0]]), _layers(stages[residual[-1] + 1 :])
        return cls(network, down, [(inner, outer) for inner, outer in blocks], up)

    def ignore_constants(self) -> None:
        """Stop reading constant channels, layer by layer from the picture on; this makes more constant."""
        for layer, reader in pairwise(self.down):
            reader.ignore(layer.constant)
        constant = self.down[-1].constant
        for inner, outer in self.blocks:
            inner.ignore(constant)
            outer.ignore(inner.constant)
            constant = constant & outer.constant
        self.up[0].ignore(constant)
        for layer, reader in pairwise(self.up):
            if reader.norm is None:
                _add_constants(layer, reader)
            reader.ignore(layer.constant)

    def mute_unread(self) -> None:
        """Mute unread channels from the stylised picture back, since this leaves more channels unread."""
        for reader, layer in pairwise(reversed(self.up)):
            layer.mute(~reader.read)
        read = self.up[0].read
        for inner, outer in reversed(self.blocks):
            outer.mute(~read)
            inner.mute(~outer.read)
            read = read | inner.read
        self.down[-1].mute(~read)
        for reader, layer in pairwise(reversed(self.down)):
            layer.mute(~reader.read)

    def shrunk(self) -> TransformerNet:
        """The network without constant and unread channels, which nothing reads any more."""
        summed = self.up[0].read
        for inner, _ in self.blocks:
            summed = summed | inner.read
        trunk = _positions(summed)
        useless = iter([not outer.read.any() for _, outer in self.blocks])
        _shrink(self.down, torch.arange(self.down[0].conv.in_channels), trunk)
        for block in self.blocks:
            _shrink(block, trunk, trunk)
        _shrink(self.up, trunk, torch.arange(self.up[-1].conv.out_channels))
        stages = [s for s in self.network.stages if not (isinstance(s, Residual) and next(useless))]
        self.network.stages = nn.Sequential(*stages)
        return self.network


def _shrink(layers: Sequence[_Layer], inputs: Tensor, outputs: Tensor) -> None:
    """Keep these inputs of the first layer, these outputs of the last, and what is read in between."""
    for layer, reader in pairwise(layers):
        read = _positions(reader.read)
        layer.shrink(inputs, read)
        inputs = read
    layers[-1].shrink(inputs, outputs)


def _layers(modules: Sequence[nn.Module]) -> list[_Layer]:
    convs = [(i, module) for i, module in enumerate(modules) if isinstance(module, nn.Conv2d)]
    behind = [modules[i + 1] if i + 1 < len(modules) else None for i, _ in convs]
    return [
        _Layer(conv, norm if isinstance(norm, nn.InstanceNorm2d) else None)
        for (_, conv), norm in zip(convs, behind, strict=True)
    ]


def _add_constants(layer: _Layer, reader: _Layer) -> None:
    """Add the response of `reader` to constant channels to its bias."""
    assert layer.norm is not None
    assert reader.conv.bias is not None
    made = reader.conv.weight.double().sum((2, 3))[:, layer.constant]
    reader.conv.bias += made @ layer.norm.bias.double()[layer.constant].relu()


def _positions(kept: Tensor) -> Tensor:
    """Indices of the channels that are kept; the first channel's if none is."""
    return kept.nonzero().flatten() if kept.any() else torch.zeros(1, dtype=torch.long)
