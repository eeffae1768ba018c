"""Twin critics Q_θ1 and Q_θ2 (TD3, Fujimoto et al. 2018), which BCQ, TD3+BC and IQL have in common."""

from collections.abc import Mapping

import torch
from torch import Tensor

from singleshot.rl import sparse_losses
from singleshot.rl.data.replay import Batch
from singleshot.rl.execution import or_sparsely
from singleshot.rl.networks import MLP, AnyNetwork, Architecture, mlp

Q1 = ("q1.0", "q1.1", "q1.2")
Q2 = ("q2.0", "q2.1", "q2.2")


def critic_architecture(state_size: int, action_size: int, hidden: tuple[int, int]) -> Architecture:
    """Architecture of both critics, each with two hidden layers of the sizes `hidden`."""
    inputs = {"state": state_size, "action": action_size}
    one, two = (MLP(inputs, dict(zip(layers, (*hidden, 1), strict=True))) for layers in (Q1, Q2))
    return Architecture({"critic 1": one, "critic 2": two})


def q(critic: AnyNetwork, layers: tuple[str, ...], state: Tensor, action: Tensor) -> Tensor:
    """Q_θj(s, a) of the critic made of `layers`: (K, batch)."""
    return mlp(critic, layers, state, action).squeeze(-1)


def least_q(critic: AnyNetwork, state: Tensor, action: Tensor) -> Tensor:
    """min_j Q_θj(s, a): (K, batch)."""
    return torch.minimum(q(critic, Q1, state, action), q(critic, Q2, state, action))


@or_sparsely(sparse_losses.td_loss)
def td_loss(critic: AnyNetwork, batch: Batch, y: Tensor) -> Mapping[str, Tensor]:
    """Σ_j (y - Q_θj(s, a))², averaged over the batch: (K,)."""
    error1 = q(critic, Q1, batch.state, batch.action) - y
    error2 = q(critic, Q2, batch.state, batch.action) - y
    return {"critic_loss": error1.square().mean(dim=1) + error2.square().mean(dim=1)}
