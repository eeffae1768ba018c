"""A trained network as export, parity and runtimes see it, whatever its kind."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from tasks.deployment.onnx_model import Form, GraphInput, Kind


@dataclass(frozen=True)
class Network:
    """A network and what goes in and comes out of it."""

    kind: Kind
    form: Form
    module: nn.Module
    """In float32 on the CPU, for inference. Takes tensors by position in the order of `inputs`, returns a
    tensor or a tuple in that of `outputs`."""
    inputs: tuple[GraphInput, ...]
    outputs: tuple[str, ...]
    sparsity: float
    """Fraction of weights that was pruned before training."""
    details: Mapping[str, Any]
    """Details as in :class:`~tasks.deployment.onnx_model.GraphCard`."""
