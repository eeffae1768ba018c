"""Networks of multilayer perceptrons: their architectures, and the tensors of K agents.

A network is in full, for K agents in one batch, or has only its kept weights, for one pruned agent. It
consists of plain dicts of tensors, in which agents are the leading axis, and a forward pass is a
function of these. So pruning can differentiate with respect to the weights, training can hand the tensors to
an optimiser, and one agent is a slice. Which form a pruned network has is chosen here
(:func:`sparse_perceptrons`), below the equations of the algorithms.

Weights are (K, in, out), the transpose of the weights in `nn.Linear`. With a transposed view of (K, out, in),
the strides of a gradient would differ from those of its weights. That costs a copy (10.3 against 8.0 ms for a
BC update, K = 1, one core) and, worse, PyTorch 2.13's fused Adam reads such gradients in the wrong order. In
files, weights are (out, in) as usual.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor

from singleshot.errors import UserError
from singleshot.pruning.pruner import of_layers
from singleshot.random_streams import stream

if TYPE_CHECKING:
    from singleshot.sparse.perceptron import ForwardPass, SparsePerceptron

LayerTensors = dict[str, Tensor]
"""Tensors by layer."""
Layers = Mapping[str, tuple[int, int]]
"""Numbers of inputs and outputs of each layer of a network."""
Width = Annotated[int, Ge(1), Le(65536)]
"""Number of units of a hidden layer; a file may claim any."""
Units = tuple[Width, Width]
"""Numbers of units of two hidden layers, first and second."""
PerceptronLayers = tuple[Sequence[str], Sequence[str]]
"""Names of the hidden layers in order, and of the heads that read the last hidden layer."""
STATE = "state"
"""Name of the input that is a state of the environment. An MLP that has this input has it first."""
Floats = NDArray[np.float32]
SPARSE_DENSITY = 0.4
"""A network that keeps at most this fraction of its weights trains faster sparsely than in full, as measured
with `python -m benchmarks.offline_rl_updates`. At one half, both take equally long, with AVX-512 and AVX2."""
Execution = Literal["auto", "masked", "sparse"]
"""How pruned networks compute: `masked`, in full with zeros where weights are pruned; `sparse`, with the kept
weights alone; `auto`, sparsely where that is faster, which requires a single agent on a CPU."""
Initialization = Literal["linear", "glorot"]
"""How initial weights are drawn, see :func:`initialize`."""


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


@dataclass(frozen=True)
class DenseNetwork:
    """K networks of one architecture."""

    weights: LayerTensors
    """(K, in, out) by layer. Only weights are pruned."""
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
        """The network with `change` applied to each tensor."""
        return from_parameters({name: change(tensor) for name, tensor in self.parameters().items()})

    def with_weights(self, weights: LayerTensors) -> "DenseNetwork":
        """The same network with other weights."""
        return replace(self, weights=weights)

    def copy(self) -> "DenseNetwork":
        """A copy with tensors of its own, without gradients."""
        return self.map(lambda tensor: tensor.detach().clone())

    def to(self, device: str) -> "DenseNetwork":
        """The same network on `device`."""
        return self.map(lambda tensor: tensor.to(device))

    def agent(self, i: int) -> "DenseNetwork":
        """Agent i alone, as a stack of one."""
        return self.map(lambda tensor: tensor[i : i + 1].detach())


@dataclass(frozen=True)
class SparseNetwork:
    """One pruned agent's network for training on a CPU: kept parameters alone, a vector per perceptron."""

    perceptrons: Mapping[str, "SparsePerceptron"]
    """Perceptrons by the name of their first layer."""
    values: Mapping[str, Tensor]
    """Parameter vector of each perceptron."""

    @classmethod
    def of(cls, perceptrons: Mapping[str, "SparsePerceptron"], network: DenseNetwork) -> "SparseNetwork":
        """Gather the parameters that `perceptrons` keep from `network`, a stack of one agent."""
        values = {
            name: perceptron.gather(network.weights, network.biases).detach()
            for name, perceptron in perceptrons.items()
        }
        return cls(perceptrons, values)

    def forward_pass(self, name: str, *inputs: Floats) -> "ForwardPass":
        """A pass of inputs (batch, in) through perceptron `name`, which can be differentiated once."""
        return self.perceptrons[name].forward_pass(self.values[name].detach().numpy(), *inputs)

    def parameters(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return dict(self.values)

    def map(self, change: Callable[[Tensor], Tensor]) -> "SparseNetwork":
        """The network with `change` applied to each tensor."""
        return replace(self, values={name: change(tensor) for name, tensor in self.values.items()})

    def copy(self) -> "SparseNetwork":
        """A copy with tensors of its own, without gradients."""
        return self.map(lambda tensor: tensor.detach().clone())

    def within(self, network: DenseNetwork) -> DenseNetwork:
        """A copy of `network` with these values written to their positions."""
        whole = network.copy()
        for name, perceptron in self.perceptrons.items():
            perceptron.scatter(self.values[name].detach(), whole.weights, whole.biases)
        return whole


AnyNetwork = DenseNetwork | SparseNetwork
"""A network in either form in which algorithms train and act with it."""


class Differentiated(dict[str, Tensor]):
    """Terms of a loss by name, together with the gradient of their sum, for one agent.

    Autograd would take longer for the many small operations of a loss than the kernels of sparse networks
    take: BCQ at 95 % makes 1.3 times as many updates a second with losses that return this.
    """

    def __init__(self, terms: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        super().__init__(terms)
        self.gradients = gradients
        """The sum's gradient for each of the network's parameters, by the parameter's name."""

    @classmethod
    def of(cls, terms: Mapping[str, float], gradients: Mapping[str, Floats]) -> "Differentiated":
        """Make them of what NumPy computed."""
        return cls(
            {name: torch.tensor([value], dtype=torch.float32) for name, value in terms.items()},
            {name: torch.from_numpy(gradient) for name, gradient in gradients.items()},
        )


def mean_square(errors: Floats) -> float:
    """The mean of squares."""
    return float(np.vdot(errors, errors)) / errors.size


def from_parameters(parameters: Mapping[str, Tensor]) -> DenseNetwork:
    """The inverse of :meth:`DenseNetwork.parameters`."""
    weights, biases = (
        {name.removesuffix(kind): tensor for name, tensor in parameters.items() if name.endswith(kind)}
        for kind in (".weight", ".bias")
    )
    return DenseNetwork(weights, biases)


def initialize(
    name: str, layers: Layers, seeds: Sequence[int], draw: int = 0, initialization: Initialization = "linear"
) -> DenseNetwork:
    """Draw one network per seed, from that seed, the name and `draw` alone.

    Agents with the same seed therefore begin with the same weights, whatever their pruner and sparsity. As by
    `nn.Linear`, weights and biases are uniform in ±1/√in, equivalent to Kaiming's uniform initialisation with
    a = √5; biases of a layer without inputs are zero. Glorot's weights are normal, of variance 2/(in + out)
    (Glorot and Bengio 2010), drawn instead of the uniform ones.
    """
    drawn = []
    for seed in seeds:
        generator, parameters = stream(f"initial {name}", seed, draw), {}
        for layer, (inputs, outputs) in layers.items():
            for kind, rows in (("weight", inputs), ("bias", 1)):
                parameters[f"{layer}.{kind}"] = (
                    (2 * torch.rand(1, rows, outputs, generator=generator) - 1) / inputs**0.5
                    if inputs
                    else torch.zeros(1, rows, outputs)
                )
            if initialization == "glorot" and inputs:
                weights = torch.randn(1, inputs, outputs, generator=generator)
                parameters[f"{layer}.weight"] = weights * (2 / (inputs + outputs)) ** 0.5
        drawn.append(parameters)
    return from_parameters({key: torch.cat([each[key] for each in drawn]) for key in drawn[0]})


def perceptron(
    network: AnyNetwork, hidden: Sequence[str], heads: Sequence[str], *inputs: Tensor
) -> tuple[Tensor, ...]:
    """Apply the hidden layers with a ReLU after each, then each linear head: (K, batch, out) per head.

    Inputs are concatenated. The first of two inputs may have n times fewer rows, (K, batch / n, in), such as
    states that each belong to n consecutive actions.
    """
    if isinstance(network, SparseNetwork):
        name = (*hidden, *heads)[0]
        return network.perceptrons[name](network.values[name], *inputs)
    x = inputs[-1]
    if len(inputs) == 2:
        first = inputs[0]
        if first.shape[1] < x.shape[1]:
            first = first.repeat_interleave(x.shape[1] // first.shape[1], dim=1)
        x = torch.cat([first, x], dim=-1)

    def linear(layer: str, x: Tensor) -> Tensor:
        # In place, as `torch.baddbmm` first writes the bias into each row of the result, which takes a CPU
        # five times as long.
        return torch.bmm(x, network.weights[layer]).add_(network.biases[layer])

    for layer in hidden:
        x = linear(layer, x).relu_()
    return tuple(linear(head, x) for head in heads)


def mlp(network: AnyNetwork, layers: Sequence[str], *inputs: Tensor) -> Tensor:
    """Apply layers, with a ReLU after each but the last, to the concatenated inputs."""
    return perceptron(network, layers[:-1], layers[-1:], *inputs)[0]


def sparse_perceptrons(
    architectures: Mapping[str, Architecture],
    masks: Mapping[str, LayerTensors],
    device: str,
    execution: Execution,
) -> dict[str, dict[str, "SparsePerceptron"]]:
    """The perceptrons of the networks that compute sparsely, by network and first layer.

    Raises:
        UserError: execution is `sparse`, but a stack with pruned agents has several agents or is on a GPU.
    """
    if not masks or execution == "masked":
        return {}
    agents = max(len(mask) for layers in masks.values() for mask in layers.values())
    lone = device == "cpu" and agents == 1
    if execution == "sparse" and not lone:
        raise UserError(
            "execution is sparse, which is for one agent at a time on a CPU; set offline_rl.execution to auto"
        )
    if not lone:
        return {}
    # Imported here, as Numba takes a quarter of a second, and most code that imports agents trains none.
    from singleshot.sparse.perceptron import SparsePerceptron

    densest = 1.0 if execution == "sparse" else SPARSE_DENSITY
    own = of_layers(lambda mask: mask[0].bool(), masks)
    density = {
        name: sum(int(mask.sum()) for mask in layers.values()) / sum(mask.numel() for mask in layers.values())
        for name, layers in own.items()
    }
    return {
        name: {
            (*hidden, *heads)[0]: SparsePerceptron.of(hidden, heads, own[name])
            for hidden, heads in architecture.perceptrons
        }
        for name, architecture in architectures.items()
        if density[name] <= densest
    }
