"""States of zero mean and unit variance for training, and networks that need none of it afterwards."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.offline_rl.networks import DenseNetwork, from_parameters


@dataclass(frozen=True)
class Normalizer:
    """(s - μ) / (σ + 1e-3), as in TD3+BC (Fujimoto & Gu 2021, section 5).

    The paper's agents see states as they are. HalfCheetah's coordinates differ in scale by a factor of 250,
    and Adam spends most of a short training on that: on 100,000 transitions of experts, BC under SNIP at 95 %
    scores 50 (HalfCheetah) and 96 (Hopper) after 2,000 updates on normalised states, 10 and 31 without.
    """

    mean: Tensor
    """μ, (state,)"""
    scale: Tensor
    """σ + 1e-3, (state,)"""

    @classmethod
    def of(cls, states: Tensor) -> "Normalizer":
        """The one for a dataset's states, (N, state)."""
        return cls(states.mean(dim=0), states.std(dim=0) + 1e-3)

    def __call__(self, state: Tensor) -> Tensor:
        """Normalised states: any shape that ends in (…, state)."""
        return (state - self.mean) / self.scale

    def fold(self, network: DenseNetwork, layers: Collection[str]) -> DenseNetwork:
        """The network of raw states that computes what `network` computes of normalised ones.

        `layers` are those whose inputs begin with the state. x̂ W + b = x (W / σ) + (b - μ (W / σ)), in double
        precision; pruned weights stay zero.
        """
        parameters = network.parameters()
        for layer in layers:
            weight, bias = parameters[f"{layer}.weight"].detach(), parameters[f"{layer}.bias"].detach()
            size = len(self.mean)
            folded = weight[:, :size].double() / self.scale[:, None].double()
            parameters[f"{layer}.weight"] = torch.cat([folded.float(), weight[:, size:]], dim=1)
            parameters[f"{layer}.bias"] = (bias.double() - self.mean[None].double() @ folded).float()
        return from_parameters(parameters)
