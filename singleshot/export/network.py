"""A trained network of any kind, as export, parity and runtimes use it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from singleshot.export.onnx_model import LICENCE, Form, GraphInput, Kind


@dataclass(frozen=True)
class Network:
    """A network with its inputs and outputs."""

    kind: Kind
    form: Form
    module: nn.Module
    """Module in float32 on the CPU, for inference. It takes tensors by position in the order of `inputs`, and
    returns a tensor, or a tuple in the order of `outputs`."""
    inputs: tuple[GraphInput, ...]
    outputs: tuple[str, ...]
    sparsity: float
    """Fraction of weights that were pruned before training."""
    details: Mapping[str, Any]
    """Details as in :class:`~singleshot.export.onnx_model.GraphCard`."""
    meanings: Mapping[str, str] = field(default_factory=dict)
    """What each input and output is, as in the card."""
    licence: str = LICENCE
