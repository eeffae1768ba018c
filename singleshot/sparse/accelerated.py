"""One of PyTorch's MLPs that computes with only its kept weights, on a CPU."""

import numpy as np
import torch
from torch import Tensor, nn

from singleshot.errors import must_be
from singleshot.sparse.compaction import Layer, layers_of
from singleshot.sparse.perceptron import SparsePerceptron, to_array


class AcceleratedMLP(nn.Module):
    """A network with an MLP's outputs and gradients, up to rounding, that computes with only kept weights.

    It has one parameter, a vector of the kept weights and the biases, and trains without filling zeros.
    """

    unbiased: Tensor
    """Which of the values are biases that the MLP has not."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        layers = [Layer(*(each.clone() for each in layer)) for layer in layers_of(model, "accelerate")]
        names = [str(i) for i in range(len(layers))]
        self.layers = dict(zip(names, layers, strict=True))
        masks = {name: layer.weight.T != 0 for name, layer in self.layers.items()}
        self.perceptron = SparsePerceptron.of(names[:-1], names[-1:], masks)
        weights, biases = self._stacked()
        trained = {θ.requires_grad for θ in model.parameters()}
        must_be("one whose layers are all frozen, or none", len(trained) == 1, model=model)
        self.kept = torch.from_numpy(np.concatenate([np.packbits(mask) for mask in masks.values()]))
        self.values = nn.Parameter(self.perceptron.gather(weights, biases), *trained)
        self.biased = [layer.bias is not None for layer in model if isinstance(layer, nn.Linear)]
        none = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        unbiased = {
            name: torch.full_like(biases[name], not own) for name, own in zip(names, self.biased, strict=True)
        }
        self.register_buffer("unbiased", self.perceptron.gather(none, unbiased).bool(), persistent=False)
        self.train(model.training)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (…, out) for inputs (…, in)."""
        values: Tensor = self.values
        right = isinstance(x, Tensor) and x.ndim > 0 and x.layout == torch.strided
        right = right and x.dtype == values.dtype == torch.float32
        right = right and x.device.type == values.device.type == "cpu"
        wanted = f"float32 inputs (…, {self.perceptron.inputs}) on the CPU, as the network is"
        must_be(wanted, right and x.shape[-1] == self.perceptron.inputs, x=x)
        values = values if all(self.biased) else values.masked_fill(self.unbiased, 0)
        if torch.is_grad_enabled() and (values.requires_grad or x.requires_grad):
            (y,) = self.perceptron(values, x.reshape(1, -1, x.shape[-1]))
            return y.view(*x.shape[:-1], y.shape[-1])
        # As few of PyTorch's functions as can be: for a single row, these take longer than the kernel.
        rows = to_array(x)
        found = self.perceptron.infer(to_array(values), rows.reshape(-1, rows.shape[-1]))
        return torch.from_numpy(found.reshape(*rows.shape[:-1], found.shape[-1]))

    def get_extra_state(self) -> Tensor:
        """The places of the kept weights, as bits."""
        return self.kept

    def set_extra_state(self, state: Tensor) -> None:
        """Refuse the values of a network that keeps weights in other places."""
        must_be("one of a network that keeps the same weights", torch.equal(state, self.kept), state=state)

    @torch.no_grad()
    def whole(self) -> nn.Sequential:
        """The network in PyTorch's layers, to save, export or continue elsewhere; pruned weights are 0."""
        weights, biases = self._stacked()
        self.perceptron.scatter(self.values, weights, biases)
        made: list[nn.Module] = []
        for name, biased in zip(weights, self.biased, strict=True):
            _, inputs, outputs = weights[name].shape
            linear = nn.Linear(inputs, outputs, bias=biased)
            linear.weight.copy_(weights[name][0].T)
            if biased:
                linear.bias.copy_(biases[name][0, 0])
            made += [linear, nn.ReLU()]
        return nn.Sequential(*made[:-1]).train(self.training).requires_grad_(self.values.requires_grad)

    def _stacked(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Copies of weights (1, in, out) and biases (1, 1, out), as they were."""
        layers = self.layers.items()
        return (
            {name: layer.weight.T.clone()[None] for name, layer in layers},
            {name: layer.bias.clone()[None, None] for name, layer in layers},
        )


def accelerate(model: nn.Sequential) -> AcceleratedMLP:
    """A network with an MLP's outputs and gradients that computes with only its kept weights, on a CPU.

    `model` is an `nn.Sequential` of `nn.Linear` layers with `nn.ReLU` between them, in float32; its zeros are
    pruned, its hooks left out. It stays as it is; :meth:`AcceleratedMLP.whole` turns what is learned into
    PyTorch's layers. This needs Numba, and compiles the kernels once, when they are first used.

    Raises:
        UserError: `model` is of another kind, frozen in part, or not in float32 on a CPU.
    """
    layers = layers_of(model, "accelerate")
    right = all(layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu" for layer in layers)
    must_be("one in float32 on the CPU", right, model=model)
    return AcceleratedMLP(model)
