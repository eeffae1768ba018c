"""Batch-Constrained deep Q-learning (Fujimoto et al. 2019, algorithm 1), for K agents at once.

Symbols are those of the paper: the VAE G_ω generates actions like the dataset's, the perturbation ξ_φ moves
them by at most Φ, and twin critics Q_θ1 and Q_θ2 evaluate them. As in the authors' code (continuous_BCQ), the
KL term counts half as much as the squared error, both are averaged over batch and dimensions, and z is within
±0.5.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn

from singleshot.rl.actor_critic import ACTOR, Q1, Q2, critic_architecture, q, td_loss
from singleshot.rl.algorithm import Algorithm, AlgorithmConfig, Loss, Perceptron, Policy, Samples
from singleshot.rl.algorithms.bc import DECODER, HIDDEN, latent_size, sample, vae_architecture, vae_loss
from singleshot.rl.data.replay import Batch, Randomness
from singleshot.rl.networks import MLP, AnyNetwork, Architecture, Differentiated, SparseNetwork, Units, mlp

Z_LIMIT = 0.5
"""Limit to which samples of the VAE's prior are clipped, so that decoded actions stay close to the data."""


@dataclass(frozen=True)
class BCQConfig(AlgorithmConfig):
    """Hyper-parameters of BCQ; the defaults are those of the authors' code."""

    hidden: Units = (400, 300)
    """Units of the two hidden layers of the actor and of each critic."""
    vae_hidden: Units = HIDDEN
    """Units of the two hidden layers of the VAE's encoder and decoder."""
    discount: Annotated[float, Ge(0), Lt(1)] = 0.99
    """Discount factor γ: weight of the next step's reward relative to this step's."""
    tau: Annotated[float, Gt(0), Le(1)] = 0.005
    """Fraction τ by which target networks follow their networks in each update."""
    lmbda: Annotated[float, Ge(0), Le(1)] = 0.75
    """Weight λ of the smaller of the two Q values in the target; the larger one has weight 1 - λ."""
    phi: Annotated[float, Ge(0), Le(1)] = 0.05
    """Largest perturbation Φ of an action, as a fraction of the action's range."""
    target_samples: Samples = 10
    """Number n of sampled actions of which the target takes the best."""
    evaluation_samples: Samples = 100
    """Number of sampled actions of which the policy takes the best."""

    @property
    def most_units(self) -> int:  # noqa: D102
        rows = max(self.batch_size * self.target_samples, self.evaluation_samples)
        return rows * max(*self.hidden, *self.vae_hidden)


class BCQ(Algorithm):
    """A VAE, twin critics, and an actor that perturbs the VAE's actions."""

    config_type = BCQConfig
    config: BCQConfig

    @property
    def architectures(self) -> Mapping[str, Architecture]:  # noqa: D102
        inputs = {"state": self.state_size, "action": self.action_size}
        actor = MLP(inputs, dict(zip(ACTOR, (*self.config.hidden, self.action_size), strict=True)))
        return {
            "actor": Architecture({"actor": actor}),
            "critic": critic_architecture(self.state_size, self.action_size, self.config.hidden),
            "vae": vae_architecture(self.state_size, self.action_size, self.config.vae_hidden),
        }

    @property
    def targets(self) -> Mapping[str, float]:  # noqa: D102
        return {"actor": self.config.tau, "critic": self.config.tau}

    @property
    def noise_shape(self) -> tuple[int, ...]:  # noqa: D102
        return self.config.evaluation_samples, latent_size(self.action_size)

    def losses(
        self,
        networks: Mapping[str, AnyNetwork],
        targets: Mapping[str, AnyNetwork],
        batch: Batch,
        randomness: Randomness,
    ) -> Iterator[tuple[str, Loss]]:
        """Yield the losses of one iteration of algorithm 1.

        One loss covers both critics. (Algorithm 1 of Arnob et al. 2021 prunes θ_1 and copies it to θ_2. Read
        literally, that would leave two equal critics, whose minimum has no effect.)
        """
        vae, critic = networks["vae"], networks["critic"]
        batch_size, latent, Φ = batch.state.shape[1], latent_size(self.action_size), self.config.phi

        # ω ← argmin Σ (a - ã)² + D_KL(N(μ, σ) ‖ N(0, 1)), ã = D_ω2(s, z), z ~ N(μ, σ)
        posterior = randomness.normal(batch_size, latent)
        yield "vae", lambda vae: vae_loss(vae, batch.state, batch.action, posterior)

        # θ ← argmin Σ (y - Q_θ(s, a))²
        candidates = randomness.normal(batch_size, self.config.target_samples, latent)
        y = self.td_target(targets["actor"], targets["critic"], vae, batch, candidates)
        yield "critic", lambda critic: td_loss(critic, batch, y)

        # φ ← argmax Σ Q_θ1(s, a + ξ_φ(s, a, Φ)), a ~ G_ω(s)
        prior = randomness.normal(batch_size, latent)
        with torch.no_grad():
            action = sample(vae, batch.state, prior, Z_LIMIT)
        yield "actor", lambda actor: perturbation_loss(actor, critic, batch.state, action, Φ)

    @torch.no_grad()
    def td_target(
        self, actor: AnyNetwork, critic: AnyNetwork, vae: AnyNetwork, batch: Batch, noise: Tensor
    ) -> Tensor:
        """y = r + γ max_i [λ min_j Q_θ'j(s', ã_i) + (1 - λ) max_j Q_θ'j(s', ã_i)], (K, batch) (eq. 12, 13).

        Here ã_i = a_i + ξ_φ'(s', a_i, Φ), with actions a_i ~ G_ω(s'). `noise` is (K, batch, n, latent).
        """
        n, λ = noise.shape[2], self.config.lmbda
        state = batch.next_state  # each state belongs to n consecutive actions
        action = perturb(actor, state, sample(vae, state, noise.flatten(1, 2), Z_LIMIT), self.config.phi)
        q1, q2 = q(critic, Q1, state, action), q(critic, Q2, state, action)
        value = torch.lerp(torch.maximum(q1, q2), torch.minimum(q1, q2), λ)
        best = value.unflatten(1, (-1, n)).amax(dim=2)
        return batch.reward + batch.not_done * self.config.discount * best

    @torch.no_grad()
    def act(self, networks: Mapping[str, AnyNetwork], state: Tensor, noise: Tensor) -> Tensor:
        """π(s) = argmax over ã_i of Q_θ1(s, ã_i): (K, batch, state) to (K, batch, action).

        `noise` is (K, batch, samples, latent), see `noise_shape`.
        """
        n = noise.shape[2]
        action = sample(networks["vae"], state, noise.flatten(1, 2), Z_LIMIT)
        action = perturb(networks["actor"], state, action, self.config.phi)
        value = q(networks["critic"], Q1, state, action).unflatten(1, (-1, n))
        best = value.argmax(dim=2)[..., None, None].expand(-1, -1, 1, action.shape[-1])
        return action.unflatten(1, (-1, n)).gather(2, best).squeeze(2)

    def policy(self, perceptron: Perceptron) -> "BCQPolicy":  # noqa: D102
        actor, critic = perceptron("actor", ACTOR), perceptron("critic", Q1)
        return BCQPolicy(perceptron("vae", DECODER), actor, critic, self.config.phi)


def perturb(actor: AnyNetwork, state: Tensor, action: Tensor, Φ: float) -> Tensor:
    """a + ξ_φ(s, a, Φ), within the range of actions [-1, 1]."""
    tanh = mlp(actor, ACTOR, state, action).tanh()
    return torch.add(action, tanh, alpha=Φ).clamp(-1, 1)


def perturbation_loss(
    actor: AnyNetwork, critic: AnyNetwork, state: Tensor, action: Tensor, Φ: float
) -> Mapping[str, Tensor]:
    """-Q_θ1(s, a + ξ_φ(s, a, Φ)), averaged over the batch: (K,)."""
    if isinstance(actor, SparseNetwork) and isinstance(critic, SparseNetwork):
        return _sparse_perturbation_loss(actor, critic, state, action, Φ)
    return {"actor_loss": -q(critic, Q1, state, perturb(actor, state, action, Φ)).mean(dim=1)}


def _sparse_perturbation_loss(
    actor: SparseNetwork, critic: SparseNetwork, state: Tensor, action: Tensor, Φ: float
) -> Differentiated:
    """:func:`perturbation_loss` of a single agent, with the gradient of the actor's parameters."""
    s, a = np.ascontiguousarray(state[0]), np.ascontiguousarray(action[0])
    perturbation = actor.forward_pass("pi.0", s, a)
    tanh = np.tanh(perturbation.y)
    perturbed = a + Φ * tanh
    q = critic.forward_pass("q1.0", s, perturbed.clip(-1, 1))

    _, d_action = q.back(np.full_like(q.y, -1 / len(a)), a.shape[1], parameters=False)
    within = np.abs(perturbed) <= 1
    d_actor, _ = perturbation.back(Φ * d_action * within * (1 - tanh * tanh))
    return Differentiated.of({"actor_loss": -q.y.mean()}, {"pi.0": d_actor})


class BCQPolicy(Policy):
    """π(s) = argmax over ã_i of Q_θ1(s, ã_i), ã_i = a_i + ξ_φ(s, a_i, Φ), a_i = D(s, z_i).

    See :class:`BCQ`. The policy uses neither the VAE's encoder nor the second critic.
    """

    outputs: ClassVar[tuple[str, ...]] = ("action", "choice")

    def __init__(self, decoder: nn.Module, actor: nn.Module, critic: nn.Module, phi: float) -> None:
        super().__init__()
        self.decoder, self.actor, self.critic = decoder, actor, critic
        self.phi = phi

    def forward(self, state: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (batch, action), and the index of each among its samples, (batch,) int64.

        `state` is (batch, state); `latents` are standard normal, (batch, samples, latent).
        """
        action, value = self.candidates(state, latents)
        choice = value.argmax(dim=1)
        best = choice[:, None, None].expand(-1, 1, action.shape[2])
        return action.gather(1, best).squeeze(1), choice

    def candidates(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The actions to choose from, (batch, samples, action), and the critic's values, (batch, samples)."""
        state, latents = inputs
        samples = latents.shape[1]
        # Tensors have two axes, because runtimes fuse product, bias and ReLU only then. With three axes, and
        # with the first layers' product computed once per state instead of once per sample, onnxruntime takes
        # 53 instead of 43 ms for a batch of 256, and is no faster for smaller batches.
        state = state[:, None].expand(-1, samples, -1).flatten(0, 1)
        z = latents.flatten(0, 1).clamp(-Z_LIMIT, Z_LIMIT)
        action = self.decoder(torch.cat([state, z], dim=1)).tanh()
        ξ = self.phi * self.actor(torch.cat([state, action], dim=1)).tanh()
        action = (action + ξ).clamp(-1, 1)
        value = self.critic(torch.cat([state, action], dim=1)).squeeze(1)
        return action.unflatten(0, (-1, samples)), value.unflatten(0, (-1, samples))


ALGORITHM = BCQ
