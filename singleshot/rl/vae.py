"""BCQ's conditional VAE: a generative model of the dataset's actions in a given state.

As in Fujimoto et al. 2019, section 4.2 and appendix D, it has an encoder E_ω1(s, a) → μ, σ and a decoder
D_ω2(s, z) → a, each with two hidden layers, and a latent twice as large as the action. BEAR's BC consists of
this VAE alone.
"""

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from singleshot.rl.architecture import MLP, Architecture, Units
from singleshot.rl.networks import AnyNetwork, Differentiated, SparseNetwork, mean_square, mlp, perceptron

HIDDEN = 750, 750
"""Units of the hidden layers of encoder and decoder in the paper."""
ENCODER = ("encoder.0", "encoder.1")
POSTERIOR = ("mean", "log_std")
DECODER = ("decoder.0", "decoder.1", "decoder.2")
LOG_STD_LIMITS = -4, 15
"""Lowest and highest log σ of the posterior, those of the code of BCQ's authors."""


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
    terms = {
        "reconstruction_loss": mean_square(error),
        "kl_loss": 0.25 * (μμ + σσ - 2 * log_σ - 1).mean(),
    }
    return Differentiated.of(terms, {"encoder.0": encoder.back(d_encoder)[0], "decoder.0": d_decoder})
