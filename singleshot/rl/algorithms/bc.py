"""Behaviour cloning, for K agents at once: by a VAE, as `BC` in Arnob et al. 2021, or by an MLP.

With the actor `vae`, it is BC of BEAR's code (Kumar et al. 2019): BCQ with `cloning=True`, which acts with
the VAE's decoder alone, on z within ±0.25. That code still trains an actor and critics, which its policy
never uses. Here only the VAE is trained, which gives the same policy. With the actor `mlp`, it is what other
papers call BC: an MLP from the state to the action, which minimises the squared error.

The VAE is that of BCQ (Fujimoto et al. 2019, section 4.2 and appendix D), which generates the actions that a
dataset might have in a given state. It has an encoder E_ω1(s, a) → μ, σ and a decoder D_ω2(s, z) → a, each
with two hidden layers, and a latent twice as large as the action.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from singleshot.rl.actor_critic import ACTOR, ActorPolicy, act, actor_mlp
from singleshot.rl.algorithm import Algorithm, AlgorithmConfig, Loss, Perceptron, Policy
from singleshot.rl.data.replay import Batch, Randomness
from singleshot.rl.networks import (
    MLP,
    AnyNetwork,
    Architecture,
    Differentiated,
    SparseNetwork,
    Units,
    mean_square,
    mlp,
    perceptron,
)

HIDDEN = 750, 750
"""Units of the hidden layers of encoder and decoder in the paper."""
ENCODER = ("encoder.0", "encoder.1")
POSTERIOR = ("mean", "log_std")
DECODER = ("decoder.0", "decoder.1", "decoder.2")
LOG_STD_LIMITS = -4, 15
"""Lowest and highest log σ of the posterior, those of the code of BCQ's authors."""
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


def latent_size(action_size: int) -> int:
    """Number of dimensions of the latent z."""
    return 2 * action_size


def vae_architecture(state_size: int, action_size: int, hidden: Units) -> Architecture:
    """Architecture of the VAE: encoder and decoder."""
    latent = latent_size(action_size)
    encoder = dict(zip(ENCODER, hidden, strict=True)) | dict.fromkeys(POSTERIOR, latent)
    decoder = dict(zip(DECODER, (*hidden, action_size), strict=True))
    return Architecture(
        {
            "encoder": MLP({"state": state_size, "action": action_size}, encoder, heads=2, output="z"),
            "decoder": MLP({"state": state_size, "z": latent}, decoder),
        }
    )


def encode(vae: AnyNetwork, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """μ and log σ of q(z | s, a): (K, batch, latent) each."""
    mean, log_std = perceptron(vae, ENCODER, POSTERIOR, state, action)
    return mean, log_std.clamp(*LOG_STD_LIMITS)


def decode(vae: AnyNetwork, state: Tensor, z: Tensor) -> Tensor:
    """Actions in (-1, 1): (K, batch, action). Each state may belong to several consecutive z."""
    return mlp(vae, DECODER, state, z).tanh()


def sample(vae: AnyNetwork, state: Tensor, noise: Tensor, limit: float) -> Tensor:
    """Actions like the dataset's: D(s, z) with z ~ N(0, 1) within ±limit. `noise` is (K, batch, latent)."""
    return decode(vae, state, noise.clamp(-limit, limit))


def vae_loss(vae: AnyNetwork, state: Tensor, action: Tensor, noise: Tensor) -> Mapping[str, Tensor]:
    """Σ (a - D(s, z))² and KL[N(μ, σ) ‖ N(0, 1)] / 2, each averaged over batch and dimensions: (K,) each.

    The KL term counts half as much as the squared error, as in the authors' code.
    """
    if isinstance(vae, SparseNetwork):
        return _sparse_vae_loss(vae, state, action, noise)
    mean, log_std = encode(vae, state, action)
    z = mean + log_std.exp() * noise
    reconstruction = (decode(vae, state, z) - action).square().mean(dim=(1, 2))
    kl = -0.5 * (1 + 2 * log_std - mean.square() - (2 * log_std).exp()).mean(dim=(1, 2))
    return {"reconstruction_loss": reconstruction, "kl_loss": 0.5 * kl}


def _sparse_vae_loss(vae: SparseNetwork, state: Tensor, action: Tensor, noise: Tensor) -> Differentiated:
    """:func:`vae_loss` of a single agent, with its gradient written out."""
    s, a, ε = (np.ascontiguousarray(each[0]) for each in (state, action, noise))
    latent = ε.shape[1]
    encoder = vae.forward_pass("encoder.0", s, a)
    μ, raw_log_σ = encoder.y[:, :latent], encoder.y[:, latent:]
    log_σ = raw_log_σ.clip(*LOG_STD_LIMITS)
    σ = np.exp(log_σ)
    decoder = vae.forward_pass("decoder.0", s, μ + σ * ε)
    ã = np.tanh(decoder.y)
    error = ã - a
    μμ, σσ = μ * μ, σ * σ

    d_decoder, dz = decoder.back(2 / a.size * error * (1 - ã * ã), latent)
    d_encoder = np.empty_like(encoder.y)
    d_encoder[:, :latent] = dz + 0.5 / ε.size * μ
    d_encoder[:, latent:] = (dz * σ * ε + 0.5 / ε.size * (σσ - 1)) * (log_σ == raw_log_σ)
    terms = {"reconstruction_loss": mean_square(error), "kl_loss": 0.25 * (μμ + σσ - 2 * log_σ - 1).mean()}
    return Differentiated.of(terms, {"encoder.0": encoder.back(d_encoder)[0], "decoder.0": d_decoder})


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
