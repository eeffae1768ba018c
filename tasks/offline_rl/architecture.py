"""What a network consists of: one description, from which all that has to know its layers derives."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tasks.offline_rl.networks import Layers, LayerTensors, PerceptronLayers, total

STATE = "state"
"""The input that is a state of the environment. It comes first where there is one."""


@dataclass(frozen=True)
class MLP:
    """A multilayer perceptron: hidden layers with a ReLU after each, then linear heads."""

    inputs: Mapping[str, int]
    """Sizes of the inputs, which are read side by side."""
    units: Mapping[str, int]
    """Outputs of each layer."""
    heads: int = 1
    """How many of the layers, the last ones, are heads: each reads the last hidden layer."""
    output: str | None = None
    """Of an MLP whose outputs another one of the network reads: the name of that input."""

    @property
    def layers(self) -> Layers:
        """Inputs and outputs of each layer."""
        hidden, heads = self.names
        width, shapes = sum(self.inputs.values()), {}
        for layer in hidden:
            shapes[layer] = width, self.units[layer]
            width = self.units[layer]
        return shapes | {head: (width, self.units[head]) for head in heads}

    @property
    def names(self) -> PerceptronLayers:
        """Hidden layers and heads."""
        names = tuple(self.units)
        return names[: -self.heads], names[-self.heads :]


@dataclass(frozen=True)
class Architecture:
    """A network: one MLP or several, by the name of the part that each is."""

    mlps: Mapping[str, MLP]

    @cached_property
    def layers(self) -> Layers:
        """Inputs and outputs of each layer, in the order in which initial weights are drawn."""
        return {name: shape for mlp in self.mlps.values() for name, shape in mlp.layers.items()}

    @property
    def parts(self) -> Mapping[str, tuple[str, ...]]:
        """The layers of each part: what is pruned on its own in scope `part`."""
        return {part: tuple(mlp.units) for part, mlp in self.mlps.items()}

    @property
    def perceptrons(self) -> tuple[PerceptronLayers, ...]:
        """Hidden layers and heads of each MLP."""
        return tuple(mlp.names for mlp in self.mlps.values())

    @property
    def state_layers(self) -> tuple[str, ...]:
        """Layers whose inputs begin with the state."""
        return tuple(next(iter(mlp.units)) for mlp in self.mlps.values() if STATE in mlp.inputs)

    def flow(self, weights: LayerTensors) -> Tensor:
        """1ᵀ(∏ θ)1: the sum of the outputs for inputs of ones, without biases or nonlinearities, for SynFlow.

        What one MLP hands to another flows on, the sum of its heads' outputs; all other inputs are ones.
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
