"""The actor of TD3+BC and IQL, and the twin critics (TD3, Fujimoto et al. 2018) that BCQ has, too."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from singleshot.rl.algorithm import Policy
from singleshot.rl.data.replay import Batch
from singleshot.rl.networks import (
    MLP,
    AnyNetwork,
    Architecture,
    Differentiated,
    SparseNetwork,
    Units,
    mean_square,
    mlp,
)

ACTOR = ("pi.0", "pi.1", "pi.2")


def actor_mlp(state_size: int, action_size: int, hidden: Units) -> MLP:
    """The layers of the actor π_φ(s) = tanh(MLP(s)), from a state to one action."""
    return MLP({"state": state_size}, dict(zip(ACTOR, (*hidden, action_size), strict=True)))


def act(actor: AnyNetwork, state: Tensor) -> Tensor:
    """π_φ(s): (K, batch, action)."""
    return mlp(actor, ACTOR, state).tanh()


class ActorPolicy(Policy):
    """π_φ(s) of one agent."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, state: Tensor) -> Tensor:
        """Actions (batch, action) for `state` (batch, state)."""
        action: Tensor = torch.tanh(self.actor(state))
        return action


Q1 = ("q1.0", "q1.1", "q1.2")
Q2 = ("q2.0", "q2.1", "q2.2")


def critic_architecture(state_size: int, action_size: int, hidden: Units) -> Architecture:
    """Architecture of both critics."""
    inputs = {"state": state_size, "action": action_size}
    one, two = (MLP(inputs, dict(zip(layers, (*hidden, 1), strict=True))) for layers in (Q1, Q2))
    return Architecture({"critic 1": one, "critic 2": two})


def q(critic: AnyNetwork, layers: tuple[str, ...], state: Tensor, action: Tensor) -> Tensor:
    """Q_θj(s, a) of the critic made of `layers`: (K, batch)."""
    return mlp(critic, layers, state, action).squeeze(-1)


def least_q(critic: AnyNetwork, state: Tensor, action: Tensor) -> Tensor:
    """min_j Q_θj(s, a): (K, batch)."""
    return torch.minimum(q(critic, Q1, state, action), q(critic, Q2, state, action))


def td_loss(critic: AnyNetwork, batch: Batch, y: Tensor) -> Mapping[str, Tensor]:
    """Σ_j (y - Q_θj(s, a))², averaged over the batch: (K,)."""
    if isinstance(critic, SparseNetwork):
        return _sparse_td_loss(critic, batch, y)
    error1 = q(critic, Q1, batch.state, batch.action) - y
    error2 = q(critic, Q2, batch.state, batch.action) - y
    return {"critic_loss": error1.square().mean(dim=1) + error2.square().mean(dim=1)}


def _sparse_td_loss(critic: SparseNetwork, batch: Batch, y: Tensor) -> Differentiated:
    """:func:`td_loss` of a single agent, with its gradient written out."""
    s, a, target = (np.ascontiguousarray(each[0]) for each in (batch.state, batch.action, y))
    loss, gradients = 0.0, {}
    for name in ("q1.0", "q2.0"):
        q = critic.forward_pass(name, s, a)
        error = q.y - target[:, None]
        loss += mean_square(error)
        gradients[name] = q.back(2 / len(a) * error)[0]
    return Differentiated.of({"critic_loss": loss}, gradients)
