"""The actor of TD3+BC and IQL: an MLP from a state to one action, π_φ(s) = tanh(MLP(s))."""

import torch
from torch import Tensor, nn

from singleshot.rl.algorithm import Policy
from singleshot.rl.networks import MLP, AnyNetwork, mlp

ACTOR = ("pi.0", "pi.1", "pi.2")
WIDTH = 256
"""Units of each hidden layer."""


def actor_mlp(state_size: int, action_size: int) -> MLP:
    """The actor's layers."""
    return MLP({"state": state_size}, dict(zip(ACTOR, (WIDTH, WIDTH, action_size), strict=True)))


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
