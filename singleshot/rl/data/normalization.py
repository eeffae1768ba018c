"""Normalisation of states for training, which is folded into the networks afterwards."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from singleshot.rl.networks import DenseNetwork, from_parameters


@dataclass(frozen=True)
class Normalizer:
    """(s - μ) / (σ + 1e-3), as in TD3+BC (Fujimoto & Gu 2021, section 5).

    Arnob et al. (2021) do not say whether they normalise. HalfCheetah's coordinates differ in scale by a
    factor of 250, and Adam spends most of a short training on that: on 100,000 expert transitions, BC with
    SNIP at 95 % sparsity scores 50 (HalfCheetah) and 96 (Hopper) after 2,000 updates on normalised states,
    but 10 and 31 on raw states.
    """

    mean: Tensor
    """μ, (state,), or (K, 1, state) if each of K agents has its own"""
    scale: Tensor
    """σ + 1e-3, of the same shape"""

    @classmethod
    def of(cls, states: Tensor) -> "Normalizer":
        """The normaliser of a dataset's states, (N, state)."""
        correction = min(1, len(states) - 1)  # a single state deviates by 0
        return cls(states.mean(dim=0), states.std(dim=0, correction=correction) + 1e-3)

    @classmethod
    def stack(cls, normalizers: Sequence["Normalizer"]) -> "Normalizer":
        """The normaliser of a stack of agents, from each agent's own."""
        means, scales = ([getattr(each, name) for each in normalizers] for name in ("mean", "scale"))
        return cls(torch.stack(means)[:, None], torch.stack(scales)[:, None])

    def of_agent(self, agent: int) -> "Normalizer":
        """One agent's own normaliser."""
        if self.mean.ndim == 1:
            return self
        return Normalizer(self.mean[agent, 0], self.scale[agent, 0])

    def __call__(self, state: Tensor) -> Tensor:
        """Normalised states: any shape (…, state), or (K, n, state) for agents with their own."""
        return (state - self.mean) / self.scale

    def fold(self, network: DenseNetwork, layers: Collection[str]) -> DenseNetwork:
        """The network that computes from raw states what `network` computes from normalised states.

        `layers` are the layers whose inputs begin with the state. As x̂ W + b = x (W / σ) + (b - μ (W / σ)),
        only their parameters change; these are computed in double precision. Pruned weights stay zero.
        """
        parameters = network.parameters()
        for layer in layers:
            weight, bias = parameters[f"{layer}.weight"].detach(), parameters[f"{layer}.bias"].detach()
            size = len(self.mean)
            folded = weight[:, :size].double() / self.scale[:, None].double()
            parameters[f"{layer}.weight"] = torch.cat([folded.float(), weight[:, size:]], dim=1)
            parameters[f"{layer}.bias"] = (bias.double() - self.mean[None].double() @ folded).float()
        return from_parameters(parameters)
