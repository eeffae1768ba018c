"""Multilayer perceptrons of K agents side by side: each weight has a leading axis of K.

A network is two plain dicts of tensors by layer, and a forward pass is a function of them: pruning
differentiates it by the weights, training hands them to an optimiser, and one agent is a slice.

Weights are (K, in, out), a `nn.Linear`'s transposed, for the sake of their gradients: those of the
transposed view of (K, out, in) come with strides unlike the weights', which costs a copy (10.3 against 8.0 ms
for an update of BC, K = 1, one core) and, worse, is read in the wrong order by PyTorch 2.13's fused Adam.
Files hold (out, in) as everybody does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tasks.offline_rl.randomness import stream
from tasks.sparse.layers import Pattern, sparse_linear

Weights = dict[str, Tensor]
"""Tensors by layer."""
Layers = Mapping[str, tuple[int, int]]
"""Inputs and outputs of each layer of a network."""


@dataclass(frozen=True)
class Network:
    """K networks of one architecture."""

    weights: Weights
    """(K, in, out) by layer. These are what pruning removes."""
    biases: Weights
    """(K, 1, out) by layer. Never pruned."""
    patterns: Mapping[str, Pattern] = field(default_factory=dict)
    """Layers held sparsely, in a stack of one: `weights` has their kept values alone, (1, kept)."""

    def parameters(self) -> dict[str, Tensor]:
        """All tensors by name: `q1.0.weight`, `q1.0.bias`, …"""
        return {
            f"{layer}.{kind}": tensor
            for layer in self.weights
            for kind, tensor in (("weight", self.weights[layer]), ("bias", self.biases[layer]))
        }

    def with_weights(self, weights: Weights) -> "Network":
        """The same network with other weights."""
        return replace(self, weights=weights)

    def copy(self) -> "Network":
        """The same numbers in tensors of their own, without gradients."""
        parameters = {name: tensor.detach().clone() for name, tensor in self.parameters().items()}
        return from_parameters(parameters, self.patterns)

    def sparse(self, patterns: Mapping[str, Pattern]) -> "Network":
        """The same network with the layers of `patterns` held sparsely."""
        kept = {layer: pattern.gather(self.weights[layer][0])[None] for layer, pattern in patterns.items()}
        return replace(self, weights={**self.weights, **kept}, patterns=patterns)

    def dense(self) -> "Network":
        """The same network with all weights in full."""
        full = {
            layer: pattern.scatter(self.weights[layer][0].detach())[None]
            for layer, pattern in self.patterns.items()
        }
        return replace(self, weights={**self.weights, **full}, patterns={})

    def to(self, device: str) -> "Network":
        """The same network on `device`."""
        return from_parameters({name: tensor.to(device) for name, tensor in self.parameters().items()})

    def agent(self, i: int) -> "Network":
        """Agent i alone, as a stack of one."""
        return from_parameters(
            {name: tensor[i : i + 1].detach() for name, tensor in self.parameters().items()}
        )


def from_parameters(
    parameters: Mapping[str, Tensor], patterns: Mapping[str, Pattern] | None = None
) -> Network:
    """The inverse of :meth:`Network.parameters`."""
    weights, biases = (
        {name.removesuffix(kind): tensor for name, tensor in parameters.items() if name.endswith(kind)}
        for kind in (".weight", ".bias")
    )
    return Network(weights, biases, patterns or {})


def stack(networks: Sequence[Network]) -> Network:
    """Networks of one architecture joined along the axis of agents."""
    parameters = [network.parameters() for network in networks]
    return from_parameters({name: torch.cat([p[name] for p in parameters]) for name in parameters[0]})


def initialize(name: str, layers: Layers, seeds: Sequence[int], draw: int = 0) -> Network:
    """A network per seed, drawn as `nn.Linear` draws by default, from that seed, the name and `draw` alone.

    Weights and biases are uniform in ±1/√in, which is what Kaiming's uniform with a = √5 comes to. Agents
    of one seed therefore begin with the same weights whatever pruner and sparsity they are for.
    """
    return stack([_initialize(name, layers, seed, draw) for seed in seeds])


def _initialize(name: str, layers: Layers, seed: int, draw: int) -> Network:
    generator = stream(f"initial {name}", seed, draw)

    def uniform(*shape: int, inputs: int) -> Tensor:
        return (2 * torch.rand(1, *shape, generator=generator) - 1) / inputs**0.5

    weights, biases = {}, {}
    for layer, (inputs, outputs) in layers.items():
        weights[layer] = uniform(inputs, outputs, inputs=inputs)
        biases[layer] = uniform(1, outputs, inputs=inputs)
    return Network(weights, biases)


def linear(network: Network, layer: str, x: Tensor) -> Tensor:
    """x W + b for each agent: (K, batch, in) to (K, batch, out)."""
    weight, bias = network.weights[layer], network.biases[layer]
    if layer in network.patterns:
        return sparse_linear(weight[0], bias[0, 0], network.patterns[layer], x[0])[None]
    return torch.baddbmm(bias, x, weight)


def relu(x: Tensor) -> Tensor:
    """max(x, 0). In place without gradients: at the target's batch of 1,000 a copy costs more than that."""
    return x.relu() if x.requires_grad else x.relu_()


def mlp(network: Network, layers: Sequence[str], x: Tensor) -> Tensor:
    """Layers with ReLU between them, none after the last."""
    *hidden, last = layers
    for layer in hidden:
        x = relu(linear(network, layer, x))
    return linear(network, last, x)


def linear_flow(weights: Weights, layers: Sequence[str], x: Tensor) -> Tensor:
    """The layers' product with `x`, without biases or nonlinearities (SynFlow's 1ᵀ ∏|θ| is made of it)."""
    for layer in layers:
        x = x @ weights[layer]
    return x
