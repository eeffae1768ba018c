"""Parity: whether a runtime's outputs match PyTorch's, as precisely as the runtime's arithmetic allows.

The tolerance is derived from the network itself. PyTorch's outputs in float32 differ from those in float64 by
some error. Any different order of the same float32 operations has about the same error, and arithmetic with
fewer bits has an error that is larger by the ratio of the unit roundoffs. So no tolerance is guessed for a
network.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from singleshot.export.runtimes.protocol import Arrays, Precision
from singleshot.io.onnx_model import GraphInput
from singleshot.io.to_onnx import Network
from singleshot.rl.algorithm import Policy

MULTIPLES: Mapping[Precision, float] = {"float32": 512, "tf32": 2**14, "float16": 2**14, "bfloat16": 2**17}
"""Accepted error of each precision, as a multiple of PyTorch's own error in float32.

Measured on trained networks: float32 has up to 2.8 times PyTorch's error in policies (onnxruntime, OpenVINO).
In styles, whose means are over all pixels, the error grows with the size of pictures: at 256, 512 and 1024
px, it is 1.4, 2 and 8 times PyTorch's in onnxruntime, and 7, 31 and 160 times in OpenVINO. bfloat16
(OpenVINO) has up to 34,000 times PyTorch's error, and for 256 states or a picture at least 5,900 times, so
the multiple 512 tells it from float32. The other multiples are twice the ratio of unit roundoffs, which is
2^16 for bfloat16, and 2^13 for float16 and TF32.
"""
FEWEST = 1000
"""Fewest numbers over which PyTorch's largest error is taken."""
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Reference:
    """The expected outputs of a network for certain inputs: of its first output, and of a policy's choice."""

    name: str
    """Name of the first output."""
    exact: NDArray[np.float64]
    """The first output; of a policy that chooses (BCQ), the candidates (batch, samples, action)."""
    torch_error: float
    """Largest error of PyTorch's float32 in any element."""
    values: NDArray[np.float64] | None = None
    """Values of the candidates (batch, samples); None for any other network."""
    torch_value_error: float = 0.0
    """Largest error of these values in PyTorch's float32."""


@dataclass(frozen=True)
class Parity:
    """How far outputs are from the reference; unknown if they can't be compared."""

    max_abs_error: float | None = None
    """Largest error of any element. BCQ's actions are compared with the chosen candidate in float64."""
    max_rel_error: float | None = None
    """The same as a fraction of the reference's largest element."""
    tolerance: float | None = None
    """The largest accepted `max_abs_error`."""
    same_choices: float | None = None
    """Fraction of BCQ's choices that are the same as in float64. Others are accepted only as near ties."""


def random_inputs(
    inputs: Sequence[GraphInput], sizes: Mapping[str, Any], seed: int
) -> dict[str, NDArray[np.float32]]:
    """Numbers uniform in each input's range, equal for equal seeds; `sizes` has the sizes of named axes."""
    generator = np.random.default_rng(seed)
    return {
        i.name: generator.uniform(i.test_low, i.test_high, i.shape_at(sizes)).astype(np.float32)
        for i in inputs
    }


@torch.inference_mode()
def reference(network: Network, inputs: Arrays) -> Reference:
    """Compute the outputs of `network` for `inputs` in float64, and the error of PyTorch's float32.

    With fewer than :data:`FEWEST` numbers, PyTorch may get all of them right by chance, and no other runtime
    would be accepted. So the missing numbers are computed from inputs changed by up to 0.1 %, only for
    PyTorch's error. A style's float64 network rounds to float32 before and after its final sigmoid, as its
    module says.
    """
    exact_module = copy.deepcopy(network.module).double()

    def exact_and_errors(inputs: Sequence[Tensor]) -> tuple[list[NDArray], list[float]]:
        exact = _run(exact_module, [tensor.double() for tensor in inputs])
        return exact, list(map(_error, _run(network.module, inputs), exact))

    given = [torch.from_numpy(np.ascontiguousarray(inputs[each.name])) for each in network.card.inputs]
    exact, errors = exact_and_errors(given)
    if copies := math.ceil(FEWEST / min(array.size for array in exact)) - 1:
        # The batch repeated, with each number changed by up to 0.1 %, the same way every time.
        generator = torch.Generator().manual_seed(0)
        repeated = [tensor.repeat(copies, *[1] * (tensor.ndim - 1)) for tensor in given]
        near = [x * (1 + 1e-3 * (2 * torch.rand(x.shape, generator=generator) - 1)) for x in repeated]
        errors = list(map(max, errors, exact_and_errors(near)[1]))
    name = network.card.outputs[0]
    if len(exact) == 1:
        return Reference(name, exact[0], errors[0])
    return Reference(name, exact[0], errors[0], exact[1], errors[1])


def compare(outputs: Arrays, reference: Reference, precision: Precision) -> tuple[Parity, str]:
    """Compare a runtime's outputs, computed in `precision`, with `reference`.

    Errors up to `MULTIPLES[precision]` times PyTorch's own error are accepted. PyTorch's error is taken as at
    least the rounding error of the reference's largest element in float32, since a few numbers may all happen
    to be exact. A choice other than float64's is accepted if the critic's values of both candidates differ by
    at most twice the tolerance of values, as each of them may be off by that tolerance.

    Returns:
        The errors, and the reason why the outputs are not accepted; empty if they are.
    """
    multiple, exact, values = MULTIPLES[precision], reference.exact, reference.values
    rows = np.arange(len(exact))
    best = None if values is None else values.argmax(axis=1)
    expected = exact if best is None else exact[rows, best]
    largest = float(np.abs(expected).max())
    tolerance = multiple * max(reference.torch_error, _rounding(largest))
    found = outputs.get(reference.name, np.empty(0))
    if found.shape != expected.shape or not np.isfinite(found).all():
        told = f"output {reference.name!r} is {found.shape}, not {expected.shape}, or has NaN or infinity"
        return Parity(tolerance=tolerance), told
    same_choices, gap, tie = None, 0.0, 0.0
    if values is not None:
        choices = outputs.get("choice", np.empty(0))
        if choices.shape != rows.shape or not np.isin(choices, range(values.shape[1])).all():
            told = f"output 'choice' isn't indices of {values.shape[1]} samples"
            return Parity(tolerance=tolerance), told
        same_choices = float((choices == best).mean())
        expected = exact[rows, choices.astype(int)]
        gap = float((values.max(axis=1) - values[rows, choices.astype(int)]).max())
        tie = 2 * multiple * max(reference.torch_value_error, _rounding(float(np.abs(values).max())))
    error = _error(found, expected)
    reason = ""
    if error > tolerance:
        reason = f"off by {error:.2g}; accepted is {tolerance:.2g}, {multiple:g} times PyTorch's own error"
    elif gap > tie:
        reason = f"chose what the critic values {gap:.2g} less than the best; a tie is up to {tie:.2g}"
    return Parity(error, error / max(largest, _TINY), tolerance, same_choices), reason


def _run(module: nn.Module, inputs: Sequence[Tensor]) -> list[NDArray]:
    """The first output; of a policy that chooses, actions and values of the candidates."""
    if isinstance(module, Policy) and (candidates := module.candidates(*inputs)):
        return [tensor.numpy() for tensor in candidates]
    outputs = module(*inputs)
    return [(outputs[0] if isinstance(outputs, tuple) else outputs).numpy()]


def _error(outputs: NDArray, exact: NDArray) -> float:
    return float(np.abs(outputs.astype(np.float64) - exact).max())


def _rounding(value: float) -> float:
    """The largest rounding error of a number up to `value` in float32."""
    return value * float(np.finfo(np.float32).eps) / 2
