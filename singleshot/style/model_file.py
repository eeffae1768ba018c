"""Model files: a network's weights as safetensors, with a card that describes them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from singleshot.errors import UserError, explained
from singleshot.io.folders import MODEL
from singleshot.sparse.packed import read_model
from singleshot.style.transformer_net import TransformerNet

PROBE_PX = 64
"""Side of the picture that a network is tried on when its file is read."""


@dataclass(frozen=True)
class ModelCard:
    """Origin and scores of a network."""

    style: str
    """Name of the painting."""
    style_sha256: str
    """SHA-256 of the painting's file."""
    photos: str
    """Number and origins of the photos that the network was trained on."""
    steps: int
    """Number of batches that the network was trained for."""
    settings: Mapping[str, Any]
    """Settings of the training."""
    scores: Mapping[str, float]
    """Scores by name; losses are means over the last batches."""
    commit: str
    """Git commit of the code that trained it."""


def save_model(network: TransformerNet, card: ModelCard, path: Path) -> None:
    """Write network and card to one file. Equal networks and cards give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_model(network, card))


def encode_model(network: TransformerNet, card: ModelCard) -> bytes:
    """The bytes that :func:`save_model` writes."""
    tensors = {
        name: tensor.detach().to("cpu", torch.float32, memory_format=torch.contiguous_format)
        for name, tensor in network.state_dict().items()
    }
    # The metadata have a single key, because safetensors writes their entries in no defined order.
    header = json.dumps({"width": network.width, **asdict(card)}, sort_keys=True)
    return safetensors.torch.save(tensors, metadata={"style_model": header})


def load_model(path: Path) -> tuple[TransformerNet, ModelCard]:
    """Read a file of :func:`save_model`, packed or not: the network on the CPU, in float32, and its card.

    The path may also be that of the folder that holds it as `model.safetensors`.

    Raises:
        UserError: the file is missing, truncated, or not a style's model.
    """
    path = path / MODEL if path.is_dir() else path
    fix = f"give a style's {MODEL} or the folder that holds it"
    if not path.is_file():
        styles = sorted(file.parent.name for file in path.parent.parent.glob(f"*/{path.name}"))
        there = f"there are {', '.join(styles)}" if styles else f"{path.parent.parent} has no style yet"
        raise UserError(f"{path}: no such file; {there}; {fix}")
    file = read_model(path, fix)
    with explained(f"{path}: not a style's model", fix):
        header = json.loads(file.metadata["style_model"])
        with torch.device("meta"):  # a header may claim any width; on `meta`, none takes memory
            network = TransformerNet(header.pop("width"))
        if not all(tensor.is_floating_point() for tensor in file.tensors.values()):
            raise ValueError("weights of another type")
        network.load_state_dict({name: tensor.float() for name, tensor in file.tensors.items()}, assign=True)
        card = ModelCard(**header)
    ramp = torch.linspace(0, 1, 3 * PROBE_PX * PROBE_PX).view(1, 3, PROBE_PX, PROBE_PX)
    with torch.inference_mode():
        picture = network.eval()(ramp)  # of finite weights, too, sums may be infinite
    if not all(tensor.isfinite().all() for tensor in (picture, *network.state_dict().values())):
        raise UserError(f"{path}: holds NaN or infinity, or makes it of a picture; {fix}")
    return network, card
