"""The conditional VAE of BCQ: a generative model of the actions that the dataset takes in a state.

Fujimoto et al. 2019, section 4.2 and appendix D: encoder E_ω1(s, a) → μ, σ and decoder D_ω2(s, z) → a, two
hidden layers of 750 each, a latent twice as large as the action. It is also all there is to BEAR's BC.
"""

from torch import Tensor

from tasks.offline_rl.architecture import MLP, Architecture
from tasks.offline_rl.networks import AnyNetwork, SparseNetwork, mlp, perceptron

WIDTH = 750
ENCODER = ("encoder.0", "encoder.1")
POSTERIOR = ("mean", "log_std")
DECODER = ("decoder.0", "decoder.1", "decoder.2")


def latent_size(action_size: int) -> int:
    """Dimensions of z."""
    return 2 * action_size


def vae_architecture(state_size: int, action_size: int) -> Architecture:
    """Encoder and decoder."""
    latent = latent_size(action_size)
    encoder = dict.fromkeys(ENCODER, WIDTH) | dict.fromkeys(POSTERIOR, latent)
    decoder = dict.fromkeys(DECODER[:-1], WIDTH) | {DECODER[-1]: action_size}
    return Architecture(
        {
            "encoder": MLP({"state": state_size, "action": action_size}, encoder, heads=2, output="z"),
            "decoder": MLP({"state": state_size, "z": latent}, decoder),
        }
    )


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


def vae_loss(vae: AnyNetwork, state: Tensor, action: Tensor, noise: Tensor) -> dict[str, Tensor]:
    """Σ (a - D(s, z))² and KL[N(μ, σ) ‖ N(0, 1)] / 2, each averaged over batch and dimensions: (K,) each.

    The KL term counts half as much as the squared error, as in the authors' code.
    """
    if isinstance(vae, SparseNetwork):
        from tasks.offline_rl import sparse_losses  # Numba takes a quarter of a second to import

        reconstruction, kl = sparse_losses.vae_loss(vae, state, action, noise)
    else:
        mean, log_std = encode(vae, state, action)
        z = mean + log_std.exp() * noise
        reconstruction = (decode(vae, state, z) - action).square().mean(dim=(1, 2))
        kl = -0.5 * (1 + 2 * log_std - mean.square() - (2 * log_std).exp()).mean(dim=(1, 2))
    return {"reconstruction_loss": reconstruction, "kl_loss": 0.5 * kl}
