"""Implicit Q-learning (Kostrikov et al. 2021, algorithm 1), for K agents at once.

Symbols are those of the paper: the value V_ψ is an upper expectile of the twin critics' values of the
dataset's actions, and the actor π_φ imitates these actions, the more the better they are than V_ψ. As in
the authors' code (implicit_q_learning, MuJoCo), π_φ is a normal distribution around tanh(MLP(s)), with one
log σ for each dimension of the action, whatever the state; weights of actions are at most 100; the actor's
learning rate falls along a cosine; and agents act by the mean.

There are two departures. Initial weights and biases are those of `nn.Linear`, as in the other algorithms,
not orthogonal and zero. Rewards are the dataset's own, not divided by a thousandth of the range of its
returns, so that β is per unit of the environment's reward.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from singleshot.rl.actor_critic import (
    ACTOR,
    ActorPolicy,
    act,
    actor_mlp,
    critic_architecture,
    least_q,
    td_loss,
)
from singleshot.rl.algorithm import Algorithm, AlgorithmConfig, Loss, Perceptron, Samples, Schedule
from singleshot.rl.data.replay import Batch, Randomness
from singleshot.rl.networks import MLP, AnyNetwork, Architecture, mlp

V = ("v.0", "v.1", "v.2")
LOG_STD = ("log_std",)
"""The layer of log σ. It has no inputs, so that its outputs are its biases, which are never pruned."""
LOG_STD_LIMITS = -5, 2
"""Lowest and highest log σ, those of the authors' code."""
LARGEST_WEIGHT = 100
"""Limit of exp(β A), that of the authors' code."""


@dataclass(frozen=True)
class IQLConfig(AlgorithmConfig):
    """Hyper-parameters of IQL; the defaults are those of the authors' code for MuJoCo."""

    learning_rate: Annotated[float, Gt(0)] = 3e-4
    """Learning rate of Adam, for all networks. That of the actor always falls, along a cosine to 0 after the
    last update."""
    batch_size: Samples = 256
    discount: Annotated[float, Ge(0), Lt(1)] = 0.99
    """Discount factor γ: weight of the next step's reward relative to this step's."""
    tau: Annotated[float, Gt(0), Le(1)] = 0.005
    """Fraction by which target networks follow their networks in each update."""
    expectile: Annotated[float, Gt(0), Lt(1)] = 0.7
    """Expectile τ of the critics' values that V_ψ is fitted to: the larger, the closer to their maximum."""
    temperature: Annotated[float, Ge(0)] = 3.0
    """Inverse temperature β of advantages: with 0, the actor clones all actions alike."""


class IQL(Algorithm):
    """A value function, twin critics and an actor."""

    config_type = IQLConfig
    config: IQLConfig

    @property
    def architectures(self) -> Mapping[str, Architecture]:  # noqa: D102
        hidden = self.config.hidden
        log_std = MLP({"none": 0}, dict.fromkeys(LOG_STD, self.action_size))
        value = MLP({"state": self.state_size}, dict(zip(V, (*hidden, 1), strict=True)))
        return {
            "actor": Architecture(
                {"actor": actor_mlp(self.state_size, self.action_size, hidden), "log σ": log_std}
            ),
            "critic": critic_architecture(self.state_size, self.action_size, hidden),
            "value": Architecture({"value": value}),
        }

    @property
    def targets(self) -> Mapping[str, float]:  # noqa: D102
        return {"critic": self.config.tau}

    @property
    def schedules(self) -> Mapping[str, Schedule]:  # noqa: D102
        return {**super().schedules, "actor": cosine_decay}

    def losses(
        self,
        networks: Mapping[str, AnyNetwork],
        targets: Mapping[str, AnyNetwork],
        batch: Batch,
        randomness: Randomness,  # noqa: ARG002 (nothing is sampled)
    ) -> Iterator[tuple[str, Loss]]:
        """Yield the losses of one update, in the order of the authors' code."""
        value = networks["value"]

        # ψ ← argmin Σ L_2^τ(Q_θ'(s, a) - V_ψ(s)) (eq. 5)
        with torch.no_grad():
            target = least_q(targets["critic"], batch.state, batch.action)
        yield "value", lambda value: self.value_loss(value, batch.state, target)

        # φ ← argmax Σ exp(β (Q_θ'(s, a) - V_ψ(s))) log π_φ(a | s) (eq. 7)
        weight = self.weight(target, value, batch.state)
        yield "actor", lambda actor: actor_loss(actor, batch, weight)

        # θ ← argmin Σ (y - Q_θ(s, a))² (eq. 6)
        y = self.td_target(value, batch)
        yield "critic", lambda critic: td_loss(critic, batch, y)

    def value_loss(self, value: AnyNetwork, state: Tensor, target: Tensor) -> Mapping[str, Tensor]:
        """L_2^τ(u) = |τ - 1(u < 0)| u² of u = Q_θ'(s, a) - V_ψ(s), averaged over the batch: (K,)."""
        u, τ = target - v(value, state), self.config.expectile
        return {"value_loss": (τ * u.clamp(min=0).square() + (1 - τ) * u.clamp(max=0).square()).mean(dim=1)}

    @torch.no_grad()
    def weight(self, target: Tensor, value: AnyNetwork, state: Tensor) -> Tensor:
        """exp(β (Q_θ'(s, a) - V_ψ(s))), at most 100: (K, batch)."""
        advantage = target - v(value, state)
        return (self.config.temperature * advantage).exp().clamp(max=LARGEST_WEIGHT)

    @torch.no_grad()
    def td_target(self, value: AnyNetwork, batch: Batch) -> Tensor:
        """y = r + γ V_ψ(s'): (K, batch)."""
        return batch.reward + batch.not_done * self.config.discount * v(value, batch.next_state)

    @torch.no_grad()
    def act(self, networks: Mapping[str, AnyNetwork], state: Tensor, noise: Tensor) -> Tensor:  # noqa: ARG002
        """Actions: the mean of π_φ(a | s)."""
        return act(networks["actor"], state)

    def policy(self, perceptron: Perceptron) -> ActorPolicy:  # noqa: D102
        return ActorPolicy(perceptron("actor", ACTOR))


def v(value: AnyNetwork, state: Tensor) -> Tensor:
    """V_ψ(s): (K, batch)."""
    return mlp(value, V, state).squeeze(-1)


def actor_loss(actor: AnyNetwork, batch: Batch, weight: Tensor) -> Mapping[str, Tensor]:
    """-w log π_φ(a | s) of the weights w (K, batch), averaged over the batch: (K,).

    There is no form for sparse networks with its gradient written out: autograd differentiates this one of
    them, too.
    """
    log_σ = mlp(actor, LOG_STD, batch.state[:, :1, :0]).clamp(*LOG_STD_LIMITS)  # (K, 1, action)
    ε = (batch.action - act(actor, batch.state)) * (-log_σ).exp()
    log_likelihood = -(ε.square() / 2 + log_σ + math.log(2 * math.pi) / 2).sum(dim=2)
    return {"actor_loss": -(weight * log_likelihood).mean(dim=1)}


def cosine_decay(done: Tensor) -> Tensor:
    """(1 + cos π x) / 2 of the fraction x of updates made."""
    return (1 + (math.pi * done).cos()) / 2


ALGORITHM = IQL
