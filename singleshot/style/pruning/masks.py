"""Masks of pruned style networks: which weights are kept, as a file and as a constraint on training."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from singleshot.errors import UserError
from singleshot.io.tensor_file import read_tensor_file, reading
from singleshot.pruning import modules
from singleshot.style.transformer_net import TransformerNet


def prunable(network: TransformerNet) -> dict[str, Tensor]:
    """The kernels (O, I, H, W) of every convolution, by the parameter's name.

    Biases and the norms' scales and shifts, 1 % of the parameters, are never pruned.
    """
    return {name: θ for name, θ in network.named_parameters() if θ.dim() == 4}


@dataclass(frozen=True)
class StyleMask:
    """The weights of one network that are kept."""

    origin: Mapping[str, Any]
    """`pruner`, `sparsity` and the other settings with which the mask was made."""
    kept: Mapping[str, Tensor]
    """True where a weight is kept: bool, with the names and shapes of :func:`prunable`."""

    def save(self, path: Path) -> None:
        """Write a file for :func:`load_mask`. Equal masks give equal bytes."""
        metadata = {"style_mask": json.dumps(dict(self.origin), sort_keys=True)}
        tensors = {name: kept.cpu().contiguous() for name, kept in self.kept.items()}
        path.write_bytes(safetensors.torch.save(tensors, metadata))

    def apply(self, network: TransformerNet, path: Path) -> None:
        """Set the pruned weights to zero, and keep them there (:func:`singleshot.pruning.modules.apply`).

        Raises:
            UserError: the mask, read from `path`, belongs to another network.
        """
        weights = prunable(network)
        if {name: θ.shape for name, θ in weights.items()} != {n: k.shape for n, k in self.kept.items()}:
            raise UserError(f"{path}: not the mask of a network of width {network.width}; prune again")
        modules.apply(network, self.kept)


def load_mask(path: Path) -> StyleMask:
    """Read a mask that :meth:`StyleMask.save` wrote.

    Raises:
        UserError: the file is missing, damaged or of another kind.
    """
    fix = "make it again"
    file = read_tensor_file(path, fix)
    with reading(path, "the mask of a style's network", fix):
        return StyleMask(json.loads(file.metadata["style_mask"]), file.tensors)
