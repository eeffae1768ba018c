"""Runs a pruned network's perceptrons with their kept weights only, on the kernels of sparse training."""

import numba
import torch
from torch import Tensor, nn

from singleshot.export.runtimes.protocol import ModelFiles, Prepared, Runtime, Shapes
from singleshot.export.runtimes.torch_eager import read_network, runner, set_threads
from singleshot.sparse.perceptron import SparsePerceptron, to_array

RUNTIMES = {"numba-sparse": {"packages": ("numba",), "for_pruned": True}}


class NumbaSparse(Runtime):
    """Runs perceptrons with compiled kernels, on one thread, and the rest of a network with PyTorch."""

    def version(self) -> str:
        """Version of Numba."""
        return numba.__version__

    def prepare(self, model: ModelFiles, shapes: Shapes, threads: int) -> Prepared:  # noqa: ARG002
        """Prepare the network, with its perceptrons replaced by kernels.

        Raises:
            ValueError: the network has no perceptron.
        """
        set_threads(threads)
        network = read_network(model)
        sparse = with_kept_weights(network.module)
        if not any(isinstance(module, KeptWeights) for module in sparse.modules()):
            raise ValueError(f"a {network.kind} has no perceptron")
        return Prepared(runner(network, sparse, torch.device("cpu")), "float32")


class KeptWeights(nn.Module):
    """A perceptron of linear layers with ReLU between them, using only nonzero weights. For inference."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        weights = {str(i): layer.weight.detach().T[None] for i, layer in enumerate(layers)}
        biases = {str(i): layer.bias.detach()[None, None] for i, layer in enumerate(layers)}
        *hidden, head = weights
        self._graph = SparsePerceptron.of(hidden, [head], {name: w[0] != 0 for name, w in weights.items()})
        self._kept = self._graph.gather(weights, biases).numpy()

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (batch, out) for x (batch, in).

        Raises:
            ValueError: x has another width, so that kernels would read beyond its end.
        """
        if x.shape[1] != self._graph.inputs:
            raise ValueError(f"{x.shape[1]} numbers a row, not {self._graph.inputs}")
        return torch.from_numpy(self._graph.infer(self._kept, to_array(x)))


def with_kept_weights(module: nn.Module) -> nn.Module:
    """Replace each perceptron in `module` in place, or return a replacement if `module` itself is one."""
    layers = list(module.children())
    if isinstance(module, nn.Sequential) and all(isinstance(each, nn.Linear | nn.ReLU) for each in layers):
        return KeptWeights([each for each in layers if isinstance(each, nn.Linear)])
    for name, child in module.named_children():
        setattr(module, name, with_kept_weights(child))
    return module


ADAPTER = NumbaSparse
