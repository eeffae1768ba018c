"""The losses of a single sparse agent, with their gradients written out.

The equations are those of `vae.py`, `actor_critic.py` and `bcq.py`, which document arguments and results; K
is 1. These name them, each beside its own form for autograd.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from singleshot.rl.data.replay import Batch
from singleshot.rl.networks import VAE_LOG_STD_LIMITS, Differentiated, SparseNetwork

if TYPE_CHECKING:
    from singleshot.sparse.perceptron import ForwardPass

Floats = NDArray[np.float32]


def vae_loss(vae: SparseNetwork, state: Tensor, action: Tensor, noise: Tensor) -> Differentiated:
    """The reconstruction loss, and half of the KL divergence."""
    s, a, ε = (_array(each[0]) for each in (state, action, noise))
    latent = ε.shape[1]
    encoder = _forward_pass(vae, "encoder.0", s, a)
    μ, raw_log_σ = encoder.y[:, :latent], encoder.y[:, latent:]
    log_σ = raw_log_σ.clip(*VAE_LOG_STD_LIMITS)
    σ = np.exp(log_σ)
    decoder = _forward_pass(vae, "decoder.0", s, μ + σ * ε)
    ã = np.tanh(decoder.y)
    error = ã - a
    μμ, σσ = μ * μ, σ * σ

    d_decoder, dz = decoder.back(2 / a.size * error * (1 - ã * ã), latent)
    d_encoder = np.empty_like(encoder.y)
    d_encoder[:, :latent] = dz + 0.5 / ε.size * μ
    d_encoder[:, latent:] = (dz * σ * ε + 0.5 / ε.size * (σσ - 1)) * (log_σ == raw_log_σ)
    return _differentiated(
        {
            "reconstruction_loss": _mean_square(error),
            "kl_loss": 0.25 * (μμ + σσ - 2 * log_σ - 1).mean(),
        },
        {"encoder.0": encoder.back(d_encoder)[0], "decoder.0": d_decoder},
    )


def td_loss(critic: SparseNetwork, batch: Batch, y: Tensor) -> Differentiated:
    """The temporal-difference loss of both critics."""
    s, a, target = _array(batch.state[0]), _array(batch.action[0]), _array(y[0])[:, None]
    loss, gradients = 0.0, {}
    for name in ("q1.0", "q2.0"):
        q = _forward_pass(critic, name, s, a)
        error = q.y - target
        loss += _mean_square(error)
        gradients[name] = q.back(2 / len(a) * error)[0]
    return _differentiated({"critic_loss": loss}, gradients)


def perturbation_loss(
    actor: SparseNetwork, critic: SparseNetwork, state: Tensor, action: Tensor, Φ: float
) -> Differentiated:
    """The actor's loss, differentiated with respect to the actor's parameters alone."""
    s, a = _array(state[0]), _array(action[0])
    perturbation = _forward_pass(actor, "pi.0", s, a)
    tanh = np.tanh(perturbation.y)
    perturbed = a + Φ * tanh
    q = _forward_pass(critic, "q1.0", s, perturbed.clip(-1, 1))

    _, d_action = q.back(np.full_like(q.y, -1 / len(a)), a.shape[1], parameters=False)
    within = np.abs(perturbed) <= 1
    d_actor, _ = perturbation.back(Φ * d_action * within * (1 - tanh * tanh))
    return _differentiated({"actor_loss": -q.y.mean()}, {"pi.0": d_actor})


def _forward_pass(network: SparseNetwork, name: str, *inputs: Floats) -> "ForwardPass":
    return network.perceptrons[name].forward_pass(_array(network.values[name]), *inputs)


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().contiguous().numpy()
    return array


def _mean_square(errors: Floats) -> float:
    return float(np.vdot(errors, errors)) / errors.size


def _differentiated(terms: Mapping[str, float], gradients: Mapping[str, Floats]) -> Differentiated:
    return Differentiated(
        {name: torch.tensor([value], dtype=torch.float32) for name, value in terms.items()},
        {name: torch.from_numpy(gradient) for name, gradient in gradients.items()},
    )
