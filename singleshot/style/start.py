"""The network that `learn-style` begins with: trained on many drawn paintings, it knows how to copy a photo.

`benchmarks/results/style_start.md` says how the file was made.
"""

from pathlib import Path

import torch
from torch import Tensor

from singleshot.random_streams import stream
from singleshot.sparse.packed import read_model
from singleshot.style.precision import channels_last
from singleshot.style.transformer_net import TransformerNet

START = Path(__file__).with_name("start.safetensors")
"""Weights in float16, by their names in the network, as safetensors."""
START_WIDTH = 16
"""Its number of channels."""
UNEVEN = 0.2
"""How unequally copies of a channel share its weights, so that they learn different things."""


def started_network(path: Path, width: int, seed: int) -> TransformerNet | None:
    """The network of a file, widened to `width` channels; None if the file's width doesn't divide that."""
    tensors = read_model(path, "check it out again").tensors
    network = TransformerNet(len(tensors["stages.0.bias"]))
    if width % network.width:
        return None
    network.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return widened(network, width, seed)


def widened(network: TransformerNet, width: int, seed: int) -> TransformerNet:
    """A network with `width` channels, a multiple of `network`'s, that computes the same, on the CPU.

    It has each channel several times (Chen et al. 2016, "Net2Net"): the convolutions that read copies share
    the weight out among them, not quite evenly.
    """
    last = f"stages.{len(network.stages) - 1}."
    times = width // network.width
    wide = TransformerNet(width)
    generator = stream("start", seed, bits=64)
    state = {}
    for name, tensor in network.state_dict().items():
        values = tensor.cpu()
        if values.dim() > 1:
            values = values if name.startswith(last) else values.repeat(times, 1, 1, 1)
            values = values if name.startswith("stages.0.") else _shared_out(values, times, generator)
        elif not name.startswith(last):
            values = values.repeat(times)
        state[name] = values
    wide.load_state_dict(state)
    return channels_last(wide)


def _shared_out(kernel: Tensor, times: int, generator: torch.Generator) -> Tensor:
    """A kernel (O, times · I, h, w) that reads `times` copies of the channels of `kernel` (O, I, h, w)."""
    shares = 1 + UNEVEN * (torch.rand(times, *kernel.shape[:2], 1, 1, generator=generator) - 0.5)
    return torch.cat(list(kernel * shares / shares.sum(dim=0)), dim=1)
