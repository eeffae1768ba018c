"""Behaviour cloning, for K agents at once: by a VAE, as `BC` in Arnob et al. 2021, or by an MLP.

With the actor `vae`, it is BC of BEAR's code (Kumar et al. 2019): BCQ with `cloning=True`, which acts with
the VAE's decoder alone, on z within ±0.25. That code still trains an actor and critics, which its policy
never uses. Here only the VAE is trained, which gives the same policy. With the actor `mlp`, it is what other
papers call BC: an MLP from the state to the action, which minimises the squared error.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from singleshot.random_streams import Randomness
from singleshot.rl.actor_critic import ACTOR, ActorPolicy, act, actor_mlp
from singleshot.rl.algorithm import Algorithm, AlgorithmConfig, Loss, Perceptron, Policy
from singleshot.rl.architecture import Architecture, Units
from singleshot.rl.data.replay import Batch
from singleshot.rl.networks import AnyNetwork
from singleshot.rl.vae import DECODER, HIDDEN, latent_size, sample, vae_architecture, vae_loss

Z_LIMIT = 0.25
"""Limit to which samples of the VAE's prior are clipped: half of BCQ's limit."""


@dataclass(frozen=True)
class BCConfig(AlgorithmConfig):
    """Hyper-parameters of behaviour cloning; the defaults are those of BEAR's code."""

    hidden: Units = HIDDEN
    """Units of the two hidden layers of the MLP, or of the VAE's encoder and decoder."""
    actor: Literal["vae", "mlp"] = "vae"
    """What imitates the data's actions: a VAE, as in Arnob et al. 2021, or an MLP, as in most papers."""


class BC(Algorithm):
    """Behaviour cloning: the VAE alone, or an MLP alone."""

    config_type = BCConfig
    config: BCConfig

    @property
    def architectures(self) -> Mapping[str, Architecture]:  # noqa: D102
        sizes = self.state_size, self.action_size, self.config.hidden
        if self.config.actor == "mlp":
            return {"actor": Architecture({"actor": actor_mlp(*sizes)})}
        return {"vae": vae_architecture(*sizes)}

    @property
    def noise_shape(self) -> tuple[int, ...]:  # noqa: D102
        return () if self.config.actor == "mlp" else (latent_size(self.action_size),)

    def losses(  # noqa: D102
        self,
        networks: Mapping[str, AnyNetwork],  # noqa: ARG002 (the loss depends on no other network)
        targets: Mapping[str, AnyNetwork],  # noqa: ARG002
        batch: Batch,
        randomness: Randomness,
    ) -> Iterator[tuple[str, Loss]]:
        if self.config.actor == "mlp":
            # Σ (a - π(s))²
            yield "actor", lambda actor: cloning_loss(actor, batch)
            return
        # Σ (a - D(s, z))² + KL / 2
        noise = randomness.normal(batch.state.shape[1], *self.noise_shape)
        yield "vae", lambda vae: vae_loss(vae, batch.state, batch.action, noise)

    @torch.no_grad()
    def act(self, networks: Mapping[str, AnyNetwork], state: Tensor, noise: Tensor) -> Tensor:
        """Actions π(s), or D(s, z) with z within ±0.25."""
        if self.config.actor == "mlp":
            return act(networks["actor"], state)
        return sample(networks["vae"], state, noise, Z_LIMIT)

    def policy(self, perceptron: Perceptron) -> Policy:  # noqa: D102
        if self.config.actor == "mlp":
            return ActorPolicy(perceptron("actor", ACTOR))
        return BCPolicy(perceptron("vae", DECODER))


def cloning_loss(actor: AnyNetwork, batch: Batch) -> Mapping[str, Tensor]:
    """(π(s) - a)², averaged over the batch and its dimensions: (K,)."""
    return {"cloning_loss": (act(actor, batch.state) - batch.action).square().mean(dim=(1, 2))}


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
