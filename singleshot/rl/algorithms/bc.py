"""Behaviour cloning as in BEAR's code (Kumar et al. 2019): the `BC` of Arnob et al. 2021, for K agents.

In BEAR's code, BC is BCQ with `cloning=True`: it acts with the VAE's decoder alone, on z within ±0.25. That
code still trains an actor and critics, which its policy never uses. Here only the VAE is trained, which gives
the same policy. (An MLP from state to action is another baseline with the same name.)
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from singleshot.rl.algorithm import Algorithm, AlgorithmConfig, Loss, Perceptron, Policy
from singleshot.rl.data.replay import Batch
from singleshot.rl.networks import AnyNetwork, Architecture
from singleshot.rl.randomness import Randomness
from singleshot.rl.vae import DECODER, latent_size, sample, vae_architecture, vae_loss

Z_LIMIT = 0.25
"""Limit to which samples of the VAE's prior are clipped: half of BCQ's limit."""


@dataclass(frozen=True)
class BCConfig(AlgorithmConfig):
    """Hyper-parameters of behaviour cloning; the defaults are those of BEAR's code."""


class BC(Algorithm):
    """Behaviour cloning: the VAE alone."""

    config_type = BCConfig

    @property
    def architectures(self) -> Mapping[str, Architecture]:  # noqa: D102
        return {"vae": vae_architecture(self.state_size, self.action_size)}

    @property
    def noise_shape(self) -> tuple[int, ...]:  # noqa: D102
        return (latent_size(self.action_size),)

    def losses(  # noqa: D102
        self,
        networks: Mapping[str, AnyNetwork],  # noqa: ARG002 (the VAE's loss depends on no other network)
        targets: Mapping[str, AnyNetwork],  # noqa: ARG002
        batch: Batch,
        randomness: Randomness,
    ) -> Iterator[tuple[str, Loss]]:
        # Σ (a - D(s, z))² + KL / 2
        noise = randomness.normal(batch.state.shape[1], *self.noise_shape)
        yield "vae", lambda vae: vae_loss(vae, batch.state, batch.action, noise)

    @torch.no_grad()
    def act(self, networks: Mapping[str, AnyNetwork], state: Tensor, noise: Tensor) -> Tensor:
        """Actions D(s, z) with z within ±0.25."""
        return sample(networks["vae"], state, noise, Z_LIMIT)

    def policy(self, perceptron: Perceptron) -> "BCPolicy":  # noqa: D102
        return BCPolicy(perceptron("vae", DECODER))


class BCPolicy(Policy):
    """π(s) = D(s, z), see :class:`BC`."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, state: Tensor, latents: Tensor) -> Tensor:
        """Actions (batch, action) for `state` (batch, state), standard normal `latents` (batch, latent)."""
        z = latents.clamp(-Z_LIMIT, Z_LIMIT)
        action: Tensor = self.decoder(torch.cat([state, z], dim=1)).tanh()
        return action


ALGORITHM = BC
