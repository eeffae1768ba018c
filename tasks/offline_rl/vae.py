"""The conditional VAE of BCQ: a generative model of the actions that the dataset takes in a state.

Fujimoto et al. 2019, section 4.2 and appendix D: encoder E_ω1(s, a) → μ, σ and decoder D_ω2(s, z) → a, two
hidden layers of 750 each, a latent twice as large as the action. It is also all there is to BEAR's BC.
"""

import torch
from torch import Tensor

from tasks.offline_rl.networks import (
    AnyNetwork,
    Layers,
    PerceptronLayers,
    SparseNetwork,
    Weights,
    linear_flow,
    mlp,
    perceptron,
    sparse_losses,
)

WIDTH = 750
ENCODER = ("encoder.0", "encoder.1")
POSTERIOR = ("mean", "log_std")
DECODER = ("decoder.0", "decoder.1", "decoder.2")
VAE_PARTS = {"encoder": (*ENCODER, *POSTERIOR), "decoder": DECODER}
VAE_PERCEPTRONS: tuple[PerceptronLayers, ...] = ((ENCODER, POSTERIOR), (DECODER[:-1], DECODER[-1:]))


def latent_size(action_size: int) -> int:
    """Dimensions of z."""
    return 2 * action_size


def vae_layers(state_size: int, action_size: int) -> Layers:
    """The VAE's architecture."""
    latent = latent_size(action_size)
    return {
        "encoder.0": (state_size + action_size, WIDTH),
        "encoder.1": (WIDTH, WIDTH),
        "mean": (WIDTH, latent),
        "log_std": (WIDTH, latent),
        "decoder.0": (state_size + latent, WIDTH),
        "decoder.1": (WIDTH, WIDTH),
        "decoder.2": (WIDTH, action_size),
    }


def encode(vae: AnyNetwork, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """μ and log σ of q(z | s, a): (K, batch, latent) each; log σ within [-4, 15] as in the authors' code."""
    mean, log_std = perceptron(vae, ENCODER, POSTERIOR, state, action)
    return mean, log_std.clamp(-4, 15)


def decode(vae: AnyNetwork, state: Tensor, z: Tensor) -> Tensor:
    """Actions in (-1, 1): (K, batch, action). A state may be for several z, one after another."""
    return mlp(vae, DECODER, state, z).tanh()


def sample(vae: AnyNetwork, state: Tensor, noise: Tensor, limit: float) -> Tensor:
    """Actions like the dataset's: D(s, z) with z ~ N(0, 1) within ±limit. `noise` is (K, batch, latent)."""
    return decode(vae, state, noise.clamp(-limit, limit))


def vae_loss(vae: AnyNetwork, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Σ (a - D(s, z))² and KL[N(μ, σ) ‖ N(0, 1)], each averaged over batch and dimensions: (K,) each."""
    if isinstance(vae, SparseNetwork):
        return sparse_losses().vae_loss(vae, state, action, noise)
    mean, log_std = encode(vae, state, action)
    z = mean + log_std.exp() * noise
    reconstruction = (decode(vae, state, z) - action).square().mean(dim=(1, 2))
    kl = -0.5 * (1 + 2 * log_std - mean.square() - (2 * log_std).exp()).mean(dim=(1, 2))
    return reconstruction, kl


def vae_flow(weights: Weights) -> Tensor:
    """Sum of the decoded actions for an input of ones, all layers linear, for SynFlow."""
    agents, inputs, _ = weights["encoder.0"].shape
    ones = weights["encoder.0"].new_ones(agents, 1, inputs)
    h = linear_flow(weights, ENCODER, ones)
    z = linear_flow(weights, ("mean",), h) + linear_flow(weights, ("log_std",), h)
    state = ones[..., : weights["decoder.0"].shape[1] - z.shape[2]]
    return linear_flow(weights, DECODER, torch.cat([state, z], dim=-1)).sum()
