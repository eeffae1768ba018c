"""TD3+BC (Fujimoto & Gu 2021), for K agents at once.

TD3 (Fujimoto et al. 2018, algorithm 1) with one more term, which holds the actor π_φ to the dataset's
actions. Symbols are those of both papers. As in the authors' code (TD3_BC), λ has the mean of |Q_θ1(s,
π_φ(s))|, where the paper's eq. 5 has |Q(s, a)|, and (π_φ(s) - a)² is averaged over batch and dimensions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from singleshot.rl.actor_critic import (
    ACTOR,
    Q1,
    ActorPolicy,
    act,
    actor_mlp,
    critic_architecture,
    least_q,
    q,
    td_loss,
)
from singleshot.rl.algorithm import Algorithm, AlgorithmConfig, Loss, Perceptron, Samples
from singleshot.rl.data.replay import Batch, Randomness
from singleshot.rl.networks import AnyNetwork, Architecture


@dataclass(frozen=True)
class TD3BCConfig(AlgorithmConfig):
    """Hyper-parameters of TD3+BC; the defaults are those of the authors' code."""

    learning_rate: Annotated[float, Gt(0)] = 3e-4
    batch_size: Samples = 256
    normalize_states: bool = True
    """Whether states are normalised to zero mean and unit variance, as in TD3+BC's paper (see
    `replay.py`)."""
    discount: Annotated[float, Ge(0), Lt(1)] = 0.99
    """Discount factor γ: weight of the next step's reward relative to this step's."""
    tau: Annotated[float, Gt(0), Le(1)] = 0.005
    """Fraction τ by which target networks follow their networks, in every d-th update."""
    policy_noise: Annotated[float, Ge(0)] = 0.2
    """Standard deviation σ of the noise that is added to the target's actions."""
    noise_clip: Annotated[float, Ge(0)] = 0.5
    """Limit c of that noise."""
    policy_delay: Annotated[int, Ge(1)] = 2
    """Number d of updates of the critics for one update of the actor and of the target networks."""
    alpha: Annotated[float, Gt(0)] = 2.5
    """Weight α of the critic's values, relative to their mean magnitude, beside the cloning loss."""


class TD3BC(Algorithm):
    """An actor and twin critics."""

    config_type = TD3BCConfig
    config: TD3BCConfig
    delayed: ClassVar[tuple[str, ...]] = ("actor",)

    @property
    def architectures(self) -> Mapping[str, Architecture]:  # noqa: D102
        return {
            "actor": Architecture(
                {"actor": actor_mlp(self.state_size, self.action_size, self.config.hidden)}
            ),
            "critic": critic_architecture(self.state_size, self.action_size, self.config.hidden),
        }

    @property
    def targets(self) -> Mapping[str, float]:  # noqa: D102
        return {"actor": self.config.tau, "critic": self.config.tau}

    @property
    def delay(self) -> int:  # noqa: D102
        return self.config.policy_delay

    def losses(
        self,
        networks: Mapping[str, AnyNetwork],
        targets: Mapping[str, AnyNetwork],
        batch: Batch,
        randomness: Randomness,
    ) -> Iterator[tuple[str, Loss]]:
        """Yield the losses of one iteration of TD3's algorithm 1, the actor's as in TD3+BC."""
        # θ ← argmin Σ (y - Q_θ(s, a))²
        noise = randomness.normal(batch.state.shape[1], self.action_size)
        y = self.td_target(targets["actor"], targets["critic"], batch, noise)
        yield "critic", lambda critic: td_loss(critic, batch, y)

        # φ ← argmax Σ λ Q_θ1(s, π_φ(s)) - (π_φ(s) - a)²
        critic = networks["critic"].map(Tensor.detach)
        yield "actor", lambda actor: self.actor_loss(actor, critic, batch)

    @torch.no_grad()
    def td_target(self, actor: AnyNetwork, critic: AnyNetwork, batch: Batch, noise: Tensor) -> Tensor:
        """y = r + γ min_j Q_θ'j(s', ã), ã = π_φ'(s') + ε, ε ~ clip(N(0, σ), -c, c): (K, batch).

        ã is within the range of actions [-1, 1]. `noise` is standard normal, (K, batch, action).
        """
        c = self.config.noise_clip
        ε = (self.config.policy_noise * noise).clamp(-c, c)
        ã = (act(actor, batch.next_state) + ε).clamp(-1, 1)
        value = least_q(critic, batch.next_state, ã)
        return batch.reward + batch.not_done * self.config.discount * value

    def actor_loss(self, actor: AnyNetwork, critic: AnyNetwork, batch: Batch) -> Mapping[str, Tensor]:
        """-λ Q_θ1(s, π_φ(s)) and (π_φ(s) - a)², each averaged: (K,) each.

        λ = α / mean |Q_θ1(s, π_φ(s))| of an agent's batch, through which no gradient flows. There is no form
        for sparse networks with its gradient written out: autograd differentiates this one of them, too.
        """
        action = act(actor, batch.state)
        value = q(critic, Q1, batch.state, action)
        λ = self.config.alpha / value.detach().abs().mean(dim=1)
        cloning = (action - batch.action).square().mean(dim=(1, 2))
        return {"actor_loss": -λ * value.mean(dim=1), "cloning_loss": cloning}

    @torch.no_grad()
    def act(self, networks: Mapping[str, AnyNetwork], state: Tensor, noise: Tensor) -> Tensor:  # noqa: ARG002
        """Actions π_φ(s), without noise."""
        return act(networks["actor"], state)

    def policy(self, perceptron: Perceptron) -> ActorPolicy:  # noqa: D102
        return ActorPolicy(perceptron("actor", ACTOR))


ALGORITHM = TD3BC
