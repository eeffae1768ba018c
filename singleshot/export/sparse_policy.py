"""Runs a pruned policy's graph with its kept weights only, where that is faster than onnxruntime."""

import itertools
import operator
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor, nn

from singleshot.export.onnx_model import GraphCard, OnnxModel, load_onnx
from singleshot.export.parity import random_inputs
from singleshot.export.policies import in_bounds, sequential
from singleshot.export.runtimes.numba_sparse import with_kept_weights
from singleshot.rl.actions import ActionBounds
from singleshot.rl.agents import layers_of
from singleshot.rl.algorithms import algorithm_class, algorithm_names
from singleshot.sparse.compaction import Layer

_Stored = onnx.TensorProto | onnx.SparseTensorProto
PolicyFunction = Callable[..., dict[str, NDArray]]
"""A function from inputs by name, each with a batch axis, to outputs by name."""
BATCHES = (1, 4, 16, 64, 256)
"""Batch sizes at which both ways are timed."""
REPEATS = 10
TOLERANCE = 1e-4
"""Largest difference of two ways' actions; rounding makes some 1e-6."""


class FastestPolicy:
    """A policy's graph, run for each batch of states in the way that is faster for its size on this machine.

    onnxruntime runs every graph. The kernels run those that compute, with pruned weights in float32, what
    their cards say; a graph that was quantised or changed in another way is left to onnxruntime.

    Kernels for kept weights compute 16 rows in the time of one. For a BC agent at 90 % sparsity, they are
    faster than onnxruntime from 32 states on; for a BCQ agent at 75 %, which takes 10 rows per state, from 8
    on (AVX-512, one thread).

    Raises:
        UserError: see :func:`singleshot.export.onnx_model.load_onnx`.
    """

    def __init__(self, path: Path) -> None:
        self.model = load_onnx(path, threads=1)
        self.card = self.model.card
        self.sparse_from = np.inf
        """Number of states from which the kernels are faster than onnxruntime."""
        if self.card.sparsity:
            try:
                self._sparse = _kept_weights(path, self.card)
            except (ValueError, KeyError, TypeError):
                return  # the graph isn't as it was exported
            self.sparse_from = _break_even(self.card, self.model, self._sparse)

    def __call__(self, **inputs: NDArray) -> dict[str, NDArray]:
        """Outputs by name."""
        many = len(inputs["state"]) >= self.sparse_from
        return self._sparse(**inputs) if many else self.model(**inputs)


def _kept_weights(path: Path, card: GraphCard) -> PolicyFunction:
    """The policy, computed with kernels for the weights of its graph that aren't zero.

    Raises:
        ValueError, KeyError or TypeError: the weights aren't those of the policy that the card describes.
    """
    graph = onnx.load(path).graph
    stored: dict[str, _Stored] = {each.name: each for each in graph.initializer}
    stored |= {each.values.name: each for each in graph.sparse_initializer}
    if card.details["algorithm"] not in algorithm_names():
        raise ValueError(f"no algorithm {card.details['algorithm']!r}")
    algorithm_type = algorithm_class(card.details["algorithm"])
    config = algorithm_type.config_type(**card.details["config"])
    (state,) = (each for each in card.inputs if each.name == "state")
    algorithm = algorithm_type(config, int(state.shape[1]), card.details["action_size"])
    architectures = layers_of(algorithm)

    def unpruned(network: str, layers: Sequence[str]) -> nn.Sequential:
        return nn.Sequential(*(nn.Linear(*architectures[network][layer], device="meta") for layer in layers))

    def pruned(network: str, full: Sequence[nn.Module]) -> nn.Module:
        weights = (name for name in stored if name.startswith(f"{network}.") and name.endswith("weight"))
        names = sorted(weights, key=lambda name: int(name.split(".")[1]))  # `actor.10` after `actor.2`
        _check_shapes(network, [tuple(stored[name].dims) for name in names], full)
        return sequential(
            [Layer(_tensor(stored[name]), _tensor(stored[name.replace("weight", "bias")])) for name in names]
        )

    policy = algorithm.policy(unpruned).eval()
    for network, full in list(policy.named_children()):
        setattr(policy, network, with_kept_weights(pruned(network, list(full.children()))))

    bounds = card.details["bounds"]
    policy = in_bounds(policy, ActionBounds(**bounds) if bounds else None).eval()

    @torch.inference_mode()
    def run(**inputs: NDArray) -> dict[str, NDArray]:
        results = policy(*(torch.from_numpy(inputs[each.name]) for each in card.inputs))
        results = results if isinstance(results, tuple) else (results,)
        return {name: result.numpy() for name, result in zip(card.outputs, results, strict=True)}

    return run


def _check_shapes(network: str, shapes: Sequence[tuple[int, ...]], full: Sequence[Any]) -> None:
    """Check that layers (out, in) are those of the network before pruning, except for removed hidden units.

    Zeros take no bytes in a sparse initialiser, so a small file may claim any number of them; and the kernels
    check no bounds.

    Raises:
        ValueError: the layers are different ones.
    """
    widths = [full[0].in_features, *(shape[0] for shape in shapes)]
    largest = [full[0].in_features, *(layer.out_features for layer in full)]
    chained = [(outputs, inputs) for inputs, outputs in itertools.pairwise(widths)]
    fits = len(widths) == len(largest) and all(map(operator.le, widths, largest))
    if list(shapes) != chained or widths[-1] != largest[-1] or not fits:
        raise ValueError(f"the weights of {network} have shapes {shapes}")


def _tensor(stored: _Stored) -> Tensor:
    if isinstance(stored, onnx.TensorProto):
        return torch.from_numpy(numpy_helper.to_array(stored).copy())
    dense = np.zeros(stored.dims, np.float32)
    np.put(dense, numpy_helper.to_array(stored.indices), numpy_helper.to_array(stored.values))
    return torch.from_numpy(dense)


def _break_even(card: GraphCard, dense: OnnxModel, sparse: PolicyFunction) -> float:
    """The smallest of :data:`BATCHES` from which on `sparse` is faster than `dense`; infinity if none is.

    It is also infinity if their actions differ in most states. In a few they may, as rounding decides which
    of several equally good actions BCQ chooses.
    """
    worth = np.inf
    for batch in reversed(BATCHES):
        sizes = {"batch": batch, "samples": card.details.get("samples", 1)}
        inputs = random_inputs(card.inputs, sizes, seed=0)
        differences = np.abs(sparse(**inputs)["action"] - dense(**inputs)["action"])  # compiles the kernels
        if np.median(differences) > TOLERANCE:
            return np.inf
        # In turn, so that other work on this machine slows both.
        seconds = [(_seconds(sparse, inputs), _seconds(dense, inputs)) for _ in range(REPEATS)]
        if np.greater_equal(*np.min(seconds, axis=0)):
            break
        worth = batch
    return worth


def _seconds(policy: PolicyFunction, inputs: dict[str, NDArray]) -> float:
    start = time.perf_counter()
    policy(**inputs)
    return time.perf_counter() - start
