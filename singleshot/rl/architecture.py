"""Architectures: which layers a network of multilayer perceptrons has, and how they are connected."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

LayerTensors = dict[str, Tensor]
"""Tensors by layer."""
Layers = Mapping[str, tuple[int, int]]
"""Numbers of inputs and outputs of each layer of a network."""
Units = tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)]]
"""Numbers of units of two hidden layers, first and second."""
PerceptronLayers = tuple[Sequence[str], Sequence[str]]
"""Names of the hidden layers in order, and of the heads that read the last hidden layer."""
STATE = "state"
"""Name of the input that is a state of the environment. An MLP that has this input has it first."""


@dataclass(frozen=True)
class MLP:
    """A multilayer perceptron: hidden layers with a ReLU after each, then linear heads."""

    inputs: Mapping[str, int]
    """Sizes of the inputs, which are concatenated."""
    units: Mapping[str, int]
    """Number of outputs of each layer, heads last."""
    heads: int = 1
    """Number of heads: the last layers, each of which reads the last hidden layer."""
    output: str | None = None
    """Name of the input with which another MLP of the network reads these outputs; None if none does."""

    @property
    def layers(self) -> Layers:
        """Numbers of inputs and outputs of each layer."""
        hidden, heads = self.names
        width, shapes = sum(self.inputs.values()), {}
        for layer in hidden:
            shapes[layer] = width, self.units[layer]
            width = self.units[layer]
        return shapes | {head: (width, self.units[head]) for head in heads}

    @property
    def names(self) -> PerceptronLayers:
        """Names of the hidden layers and of the heads."""
        names = tuple(self.units)
        return names[: -self.heads], names[-self.heads :]

    def shrunk(self, density: float) -> "MLP":
        """The MLP with as nearly as possible the fraction `density` of its weights.

        All hidden layers are narrower by one factor. Inputs and outputs remain, and so does an MLP without
        hidden layers.
        """
        hidden, _ = self.names
        if not hidden:
            return self
        widest = max(self.units[layer] for layer in hidden)

        def scaled(width: int) -> MLP:
            units = {layer: max(1, round(self.units[layer] * width / widest)) for layer in hidden}
            return replace(self, units={**self.units, **units})

        def weights(mlp: MLP) -> int:
            return sum(inputs * outputs for inputs, outputs in mlp.layers.values())

        goal = density * weights(self)
        return min(map(scaled, range(1, widest + 1)), key=lambda mlp: abs(weights(mlp) - goal))


@dataclass(frozen=True)
class Architecture:
    """A network that consists of one or several MLPs, its parts, by name."""

    mlps: Mapping[str, MLP]

    @functools.cached_property
    def layers(self) -> Layers:
        """Numbers of inputs and outputs of each layer, in the order in which initial weights are drawn."""
        return {name: shape for mlp in self.mlps.values() for name, shape in mlp.layers.items()}

    def shrunk(self, density: float) -> "Architecture":
        """The network whose MLPs each have the fraction `density` of their weights."""
        return Architecture({name: mlp.shrunk(density) for name, mlp in self.mlps.items()})

    @property
    def parts(self) -> Mapping[str, tuple[str, ...]]:
        """The layers of each part. In scope `part`, each part is pruned on its own."""
        return {part: tuple(mlp.units) for part, mlp in self.mlps.items()}

    @property
    def perceptrons(self) -> tuple[PerceptronLayers, ...]:
        """Names of the hidden layers and of the heads of each MLP."""
        return tuple(mlp.names for mlp in self.mlps.values())

    @property
    def state_layers(self) -> tuple[str, ...]:
        """Layers whose inputs begin with the state."""
        return tuple(next(iter(mlp.units)) for mlp in self.mlps.values() if STATE in mlp.inputs)

    def flow(self, weights: LayerTensors) -> Tensor:
        """1ᵀ(∏ θ)1: the sum of the outputs for inputs of ones, without biases or nonlinearities, for SynFlow.

        An MLP that reads another MLP's outputs gets the sum of that MLP's heads. All other inputs are ones.
        """
        first = next(iter(weights.values()))
        read: dict[str, Tensor] = {}
        outputs = []
        for mlp in self.mlps.values():
            hidden, heads = mlp.names
            ones = {name: first.new_ones(len(first), 1, size) for name, size in mlp.inputs.items()}
            x = torch.cat([read.get(name, one) for name, one in ones.items()], dim=-1)
            for layer in hidden:
                x = x @ weights[layer]
            y = total(x @ weights[head] for head in heads)
            if mlp.output is None:
                outputs.append(y.sum())
            else:
                read[mlp.output] = y
        return total(outputs)


def total(tensors: Iterable[Tensor]) -> Tensor:
    """The sum of one or more tensors, added in the given order."""
    return functools.reduce(torch.add, tensors)
