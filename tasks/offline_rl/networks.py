"""Multilayer perceptrons of K agents side by side: each weight has a leading axis of K.

A network is two plain dicts of tensors by layer, and a forward pass is a function of them: pruning
differentiates it by the weights, training hands them to an optimiser, and one agent is a slice.

Weights are (K, in, out), a `nn.Linear`'s transposed, for the sake of their gradients: those of the
transposed view of (K, out, in) come with strides unlike the weights', which costs a copy (10.3 against 8.0 ms
for an update of BC, K = 1, one core) and, worse, is read in the wrong order by PyTorch 2.13's fused Adam.
Files hold (out, in) as everybody does.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.data.randomness import stream

if TYPE_CHECKING:
    from tasks.sparse.perceptron import SparsePerceptron

LayerTensors = dict[str, Tensor]
"""Tensors by layer."""
Layers = Mapping[str, tuple[int, int]]
"""Inputs and outputs of each layer of a network."""
PerceptronLayers = tuple[Sequence[str], Sequence[str]]
"""Hidden layers in order, and the heads that read the last of them."""


@dataclass(frozen=True)
class DenseNetwork:
    """K networks of one architecture."""

    weights: LayerTensors
    """(K, in, out) by layer. These are what pruning removes."""
    biases: LayerTensors
    """(K, 1, out) by layer. Never pruned."""

    def parameters(self) -> dict[str, Tensor]:
        """All tensors by name: `q1.0.weight`, `q1.0.bias`, …"""
        return {
            f"{layer}.{kind}": tensor
            for layer in self.weights
            for kind, tensor in (("weight", self.weights[layer]), ("bias", self.biases[layer]))
        }

    def map(self, change: Callable[[Tensor], Tensor]) -> "DenseNetwork":
        """The network of what `change` makes of each tensor."""
        return from_parameters({name: change(tensor) for name, tensor in self.parameters().items()})

    def with_weights(self, weights: LayerTensors) -> "DenseNetwork":
        """The same network with other weights."""
        return replace(self, weights=weights)

    def copy(self) -> "DenseNetwork":
        """The same numbers in tensors of their own, without gradients."""
        return self.map(lambda tensor: tensor.detach().clone())

    def to(self, device: str) -> "DenseNetwork":
        """The same network on `device`."""
        return self.map(lambda tensor: tensor.to(device))

    def agent(self, i: int) -> "DenseNetwork":
        """Agent i alone, as a stack of one."""
        return self.map(lambda tensor: tensor[i : i + 1].detach())


@dataclass(frozen=True)
class SparseNetwork:
    """One pruned agent's network in training on a CPU: kept weights alone, a vector for each perceptron."""

    perceptrons: Mapping[str, "SparsePerceptron"]
    """Perceptrons by the name of their first layer."""
    values: Mapping[str, Tensor]
    """The parameters of each."""

    @classmethod
    def of(cls, perceptrons: Mapping[str, "SparsePerceptron"], network: DenseNetwork) -> "SparseNetwork":
        """What `perceptrons` hold of a stack of one."""
        values = {
            name: perceptron.gather(network.weights, network.biases).detach()
            for name, perceptron in perceptrons.items()
        }
        return cls(perceptrons, values)

    def parameters(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return dict(self.values)

    def map(self, change: Callable[[Tensor], Tensor]) -> "SparseNetwork":
        """The network of what `change` makes of each tensor."""
        return replace(self, values={name: change(tensor) for name, tensor in self.values.items()})

    def copy(self) -> "SparseNetwork":
        """The same numbers in tensors of their own, without gradients."""
        return self.map(lambda tensor: tensor.detach().clone())

    def within(self, network: DenseNetwork) -> DenseNetwork:
        """A copy of `network` with these values in their places."""
        whole = network.copy()
        for name, perceptron in self.perceptrons.items():
            perceptron.scatter(self.values[name].detach(), whole.weights, whole.biases)
        return whole


AnyNetwork = DenseNetwork | SparseNetwork
"""What algorithms train and act with."""


def from_parameters(parameters: Mapping[str, Tensor]) -> DenseNetwork:
    """The inverse of :meth:`DenseNetwork.parameters`."""
    weights, biases = (
        {name.removesuffix(kind): tensor for name, tensor in parameters.items() if name.endswith(kind)}
        for kind in (".weight", ".bias")
    )
    return DenseNetwork(weights, biases)


def stack(networks: Sequence[DenseNetwork]) -> DenseNetwork:
    """Networks of one architecture joined along the axis of agents."""
    parameters = [network.parameters() for network in networks]
    return from_parameters({name: torch.cat([p[name] for p in parameters]) for name in parameters[0]})


def initialize(name: str, layers: Layers, seeds: Sequence[int], draw: int = 0) -> DenseNetwork:
    """A network per seed, drawn as `nn.Linear` draws by default, from that seed, the name and `draw` alone.

    Weights and biases are uniform in ±1/√in, which is what Kaiming's uniform with a = √5 comes to. Agents
    of one seed therefore begin with the same weights whatever pruner and sparsity they are for.
    """
    return stack([_initialize(name, layers, seed, draw) for seed in seeds])


def _initialize(name: str, layers: Layers, seed: int, draw: int) -> DenseNetwork:
    generator = stream(f"initial {name}", seed, draw)

    def uniform(*shape: int, inputs: int) -> Tensor:
        return (2 * torch.rand(1, *shape, generator=generator) - 1) / inputs**0.5

    weights, biases = {}, {}
    for layer, (inputs, outputs) in layers.items():
        weights[layer] = uniform(inputs, outputs, inputs=inputs)
        biases[layer] = uniform(1, outputs, inputs=inputs)
    return DenseNetwork(weights, biases)


def perceptron(
    network: AnyNetwork, hidden: Sequence[str], heads: Sequence[str], *inputs: Tensor
) -> tuple[Tensor, ...]:
    """Hidden layers with a ReLU after each, then the linear layer of each head: (K, batch, out) of each.

    They read the inputs side by side. The first of two, (K, batch / n, in), may have n times fewer rows, such
    as states of which each is for the next n actions.
    """
    if isinstance(network, SparseNetwork):
        return network.perceptrons[hidden[0]](network.values[hidden[0]], *inputs)
    x = side_by_side(*inputs)
    for layer in hidden:
        x = relu(linear(network, layer, x))
    return tuple(linear(network, head, x) for head in heads)


def linear(network: DenseNetwork, layer: str, x: Tensor) -> Tensor:
    """x W + b for each agent: (K, batch, in) to (K, batch, out)."""
    return torch.baddbmm(network.biases[layer], x, network.weights[layer])


def relu(x: Tensor) -> Tensor:
    """max(x, 0). In place without gradients: at the target's batch of 1,000 a copy costs more than that."""
    return x.relu() if x.requires_grad else x.relu_()


def side_by_side(*inputs: Tensor) -> Tensor:
    """(K, batch, sum of in), rows of the first repeated: see :func:`perceptron`."""
    if len(inputs) == 1:
        return inputs[0]
    first, second = inputs
    if first.shape[1] < second.shape[1]:
        first = first.repeat_interleave(second.shape[1] // first.shape[1], dim=1)
    return torch.cat([first, second], dim=-1)


def mlp(network: AnyNetwork, layers: Sequence[str], *inputs: Tensor) -> Tensor:
    """Layers with ReLU between them, none after the last, of inputs side by side."""
    return perceptron(network, layers[:-1], layers[-1:], *inputs)[0]


def total(tensors: Iterable[Tensor]) -> Tensor:
    """The sum of one tensor or more, added up in their order."""
    return functools.reduce(torch.add, tensors)
