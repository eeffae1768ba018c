"""The losses of a single sparse agent, with their gradients written out.

The equations are those of `vae.py` and `bcq.py`, which document arguments and results; K is 1. To PyTorch
each loss is one operation, instead of some 25 small ones and as many gradients. Calling these takes longer
than computing them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tasks.offline_rl.networks import SparseNetwork
from tasks.sparse.kernels import Floats
from tasks.sparse.perceptron import ForwardPass, to_array

Gradients = Callable[..., tuple[Floats, ...]]
"""Function from the weight of each loss in a weighted sum to the sum's gradient for each parameter vector."""


def vae_loss(
    vae: SparseNetwork, state: Tensor, action: Tensor, noise: Tensor, log_std_limits: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """The reconstruction loss and the KL divergence."""
    s, a, ε = (to_array(each[0]) for each in (state, action, noise))
    encoder = _forward_pass(vae, "encoder.0", s, a)
    μ, log_σ = encoder.y[:, : ε.shape[1]], encoder.y[:, ε.shape[1] :].clip(*log_std_limits)
    σ = np.exp(log_σ)
    decoder = _forward_pass(vae, "decoder.0", s, μ + σ * ε)
    ã = np.tanh(decoder.y)
    reconstruction = np.square(ã - a).mean()
    kl = -0.5 * (1 + 2 * log_σ - μ * μ - σ * σ).mean()

    def gradients(d_reconstruction: float, d_kl: float) -> tuple[Floats, ...]:
        d_decoder, dz = decoder.back(2 * d_reconstruction / a.size * (ã - a) * (1 - ã * ã), ε.shape[1])
        dμ = dz + d_kl / ε.size * μ
        d_log_σ = dz * σ * ε + d_kl / ε.size * (σ * σ - 1)
        d_log_σ[log_σ != encoder.y[:, ε.shape[1] :]] = 0
        d_encoder, _ = encoder.back(np.concatenate([dμ, d_log_σ], axis=1))
        return d_encoder, d_decoder

    found_reconstruction, found_kl = _losses(
        (reconstruction, kl), gradients, vae.values["encoder.0"], vae.values["decoder.0"]
    )
    return found_reconstruction, found_kl


def td_loss(critic: SparseNetwork, state: Tensor, action: Tensor, y: Tensor) -> Tensor:
    """The temporal-difference loss of both critics."""
    s, a, target = (to_array(each[0]) for each in (state, action, y))
    critics = [_forward_pass(critic, name, s, a) for name in ("q1.0", "q2.0")]
    errors = [own.y - target[:, None] for own in critics]

    def gradients(d_loss: float) -> tuple[Floats, ...]:
        return tuple(
            own.back(2 * d_loss / len(a) * error)[0] for own, error in zip(critics, errors, strict=True)
        )

    loss = sum(np.square(error).mean() for error in errors)
    return _losses((loss,), gradients, critic.values["q1.0"], critic.values["q2.0"])[0]


def actor_loss(
    actor: SparseNetwork, critic: SparseNetwork, state: Tensor, action: Tensor, phi: float
) -> Tensor:
    """The actor's loss, differentiable with respect to the actor's parameters alone."""
    s, a = to_array(state[0]), to_array(action[0])
    perturbation = _forward_pass(actor, "pi.0", s, a)
    tanh = np.tanh(perturbation.y)
    perturbed = a + phi * tanh
    q = _forward_pass(critic, "q1.0", s, perturbed.clip(-1, 1))

    def gradients(d_loss: float) -> tuple[Floats, ...]:
        _, d_action = q.back(np.full_like(q.y, -d_loss / len(a)), a.shape[1], parameters=False)
        d_action[np.abs(perturbed) > 1] = 0
        return (perturbation.back(phi * d_action * (1 - tanh * tanh))[0],)

    return _losses((-q.y.mean(),), gradients, actor.values["pi.0"])[0]


def _forward_pass(network: SparseNetwork, name: str, *inputs: Floats) -> ForwardPass:
    return ForwardPass(network.perceptrons[name], to_array(network.values[name]), *inputs)


def _losses(values: tuple[Any, ...], gradients: Gradients, *parameters: Tensor) -> tuple[Tensor, ...]:
    """Turn each value into a loss (1,) that PyTorch can differentiate."""
    found: tuple[Tensor, ...] = _Losses.apply(values, gradients, *parameters)  # type: ignore[no-untyped-call]
    return found


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: tuple[Any, ...], gradients: Gradients, *_: Tensor) -> tuple[Tensor, ...]:
        ctx.gradients = gradients
        return tuple(torch.tensor([value], dtype=torch.float32) for value in values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_losses: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.gradients(*(float(d_loss) for d_loss in d_losses))
        return None, None, *(torch.from_numpy(each) for each in found)
