"""Batch-Constrained deep Q-learning (Fujimoto et al. 2019, algorithm 1), for K agents at once.

Symbols are the paper's: the VAE G_ω generates actions like the dataset's, the perturbation ξ_φ moves them
by at most Φ, twin critics Q_θ1 and Q_θ2 judge them. As in the authors' code (continuous_BCQ) the KL term
counts half as much as the squared error, both averaged over batch and dimensions, and z is within ±0.5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor

from tasks.offline_rl.data.replay import Batch
from tasks.offline_rl.networks import (
    AnyNetwork,
    Layers,
    Network,
    PerceptronLayers,
    SparseNetwork,
    Weights,
    linear_flow,
    mlp,
    sparse_losses,
)
from tasks.offline_rl.randomness import Randomness
from tasks.offline_rl.training.learner import Learner
from tasks.offline_rl.vae import (
    VAE_PARTS,
    VAE_PERCEPTRONS,
    latent_size,
    sample,
    vae_flow,
    vae_layers,
    vae_loss,
)
from tasks.pruning.objective import Objective, Parts

ACTOR = ("pi.0", "pi.1", "pi.2")
Q1 = ("q1.0", "q1.1", "q1.2")
Q2 = ("q2.0", "q2.1", "q2.2")
Z_LIMIT = 0.5
"""Samples of the VAE's prior are kept within ± this, so that decoded actions stay close to the data."""


@dataclass(frozen=True)
class BCQConfig:
    """Hyper-parameters; the defaults are those of the authors' code."""

    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Of Adam, for all networks."""
    batch_size: Annotated[int, Ge(1)] = 100
    discount: Annotated[float, Ge(0), Lt(1)] = 0.99
    """γ"""
    tau: Annotated[float, Gt(0), Le(1)] = 0.005
    """τ: how fast target networks follow."""
    lmbda: Annotated[float, Ge(0), Le(1)] = 0.75
    """λ: weight of the smaller of the two Q values in the target, the larger has 1 - λ."""
    phi: Annotated[float, Ge(0), Le(1)] = 0.05
    """Φ: the largest perturbation of an action, as a fraction of the action's range."""
    target_samples: Annotated[int, Ge(1)] = 10
    """n: actions among which the target takes the best."""
    evaluation_samples: Annotated[int, Ge(1)] = 100
    """Actions among which the policy takes the best."""
    normalize_states: bool = False
    """Train on states of zero mean and unit variance (see `normalization.py`), which the paper doesn't."""


class BCQ:
    """The algorithm for one size of states and actions. Networks and data are given to each method."""

    targets: ClassVar[tuple[str, ...]] = ("actor", "critic")
    state_layers: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "actor": ("pi.0",),
        "critic": ("q1.0", "q2.0"),
        "vae": ("encoder.0", "decoder.0"),
    }
    """Layers whose inputs begin with the state."""
    perceptrons: ClassVar[Mapping[str, tuple[PerceptronLayers, ...]]] = {
        "actor": ((ACTOR[:-1], ACTOR[-1:]),),
        "critic": ((Q1[:-1], Q1[-1:]), (Q2[:-1], Q2[-1:])),
        "vae": VAE_PERCEPTRONS,
    }
    """How each network's layers are joined."""
    parts: ClassVar[Parts] = {
        "actor": {"actor": ACTOR},
        "critic": {"critic 1": Q1, "critic 2": Q2},
        "vae": VAE_PARTS,
    }
    """What is pruned on its own in scope `part`."""

    def __init__(self, config: BCQConfig, state_size: int, action_size: int) -> None:
        self.config = config
        self.latent_size = latent_size(action_size)
        self.layers: Mapping[str, Layers] = {
            "actor": {
                "pi.0": (state_size + action_size, 400),
                "pi.1": (400, 300),
                "pi.2": (300, action_size),
            },
            "critic": {
                f"{q}.{i}": shape
                for q in ("q1", "q2")
                for i, shape in enumerate([(state_size + action_size, 400), (400, 300), (300, 1)])
            },
            "vae": vae_layers(state_size, action_size),
        }
        self.noise_shape: tuple[int, ...] = (config.evaluation_samples, self.latent_size)

    def update(self, learner: Learner, batch: Batch, randomness: Randomness) -> dict[str, Tensor]:
        """One iteration of algorithm 1. Losses of each agent, (K,)."""
        actor, critic, vae = (learner.networks[name] for name in ("actor", "critic", "vae"))
        batch_size = batch.state.shape[1]

        # ω ← argmin Σ (a - ã)² + D_KL(N(μ, σ) ‖ N(0, 1)), ã = D_ω2(s, z), z ~ N(μ, σ)
        noise = randomness.normal(batch_size, self.latent_size)
        reconstruction, kl = vae_loss(vae, batch.state, batch.action, noise)
        learner.minimize("vae", reconstruction + 0.5 * kl)

        # θ ← argmin Σ (y - Q_θ(s, a))²
        noise = randomness.normal(batch_size, self.config.target_samples, self.latent_size)
        y = self.td_target(learner.targets["actor"], learner.targets["critic"], vae, batch, noise)
        critic_loss = td_loss(critic, batch, y)
        learner.minimize("critic", critic_loss)

        # φ ← argmax Σ Q_θ1(s, a + ξ_φ(s, a, Φ)), a ~ G_ω(s)
        noise = randomness.normal(batch_size, self.latent_size)
        with torch.no_grad():
            action = sample(vae, batch.state, noise, Z_LIMIT)
        actor_loss = self.actor_loss(actor, critic, batch.state, action)
        learner.minimize("actor", actor_loss)

        # θ' ← τ θ + (1 - τ) θ', φ' ← τ φ + (1 - τ) φ'
        learner.update_targets(self.config.tau)
        losses = {"reconstruction_loss": reconstruction, "kl": kl, "critic_loss": critic_loss}
        return {name: loss.detach() for name, loss in (losses | {"actor_loss": actor_loss}).items()}

    @torch.no_grad()
    def td_target(
        self, actor: AnyNetwork, critic: AnyNetwork, vae: AnyNetwork, batch: Batch, noise: Tensor
    ) -> Tensor:
        """y = r + γ max_i [λ min_j Q_θ'j(s', ã_i) + (1 - λ) max_j Q_θ'j(s', ã_i)], (K, batch) (eq. 12, 13).

        ã_i = a_i + ξ_φ'(s', a_i, Φ) of actions a_i ~ G_ω(s'). `noise` is (K, batch, n, latent).
        """
        n, λ = noise.shape[2], self.config.lmbda
        state = batch.next_state  # each for n actions, one after another
        action = self.perturb(actor, state, sample(vae, state, noise.flatten(1, 2), Z_LIMIT))
        q1, q2 = q(critic, Q1, state, action), q(critic, Q2, state, action)
        value = λ * torch.minimum(q1, q2) + (1 - λ) * torch.maximum(q1, q2)
        best = value.unflatten(1, (-1, n)).amax(dim=2)
        return batch.reward + batch.not_done * self.config.discount * best

    def perturb(self, actor: AnyNetwork, state: Tensor, action: Tensor) -> Tensor:
        """a + ξ_φ(s, a, Φ), within the range of actions [-1, 1]."""
        ξ = self.config.phi * mlp(actor, ACTOR, state, action).tanh()
        return (action + ξ).clamp(-1, 1)

    def actor_loss(self, actor: AnyNetwork, critic: AnyNetwork, state: Tensor, action: Tensor) -> Tensor:
        """-Q_θ1(s, a + ξ_φ(s, a, Φ)), averaged over the batch: (K,)."""
        if isinstance(actor, SparseNetwork) and isinstance(critic, SparseNetwork):
            return sparse_losses().actor_loss(actor, critic, state, action, self.config.phi)
        return -q(critic, Q1, state, self.perturb(actor, state, action)).mean(dim=1)

    @torch.no_grad()
    def act(self, networks: Mapping[str, AnyNetwork], state: Tensor, noise: Tensor) -> Tensor:
        """π(s) = argmax over ã_i of Q_θ1(s, ã_i): (K, batch, state) to (K, batch, action).

        `noise` is (K, batch, samples, latent), see `noise_shape`.
        """
        n = noise.shape[2]
        action = sample(networks["vae"], state, noise.flatten(1, 2), Z_LIMIT)
        action = self.perturb(networks["actor"], state, action)
        value = q(networks["critic"], Q1, state, action).unflatten(1, (-1, n))
        best = value.argmax(dim=2)[..., None, None].expand(-1, -1, 1, action.shape[-1])
        return action.unflatten(1, (-1, n)).gather(2, best).squeeze(2)

    def objectives(
        self, networks: Mapping[str, Network], batch: Batch, randomness: Randomness, scores: torch.Generator
    ) -> dict[str, Objective]:
        """What each network is pruned for: its own loss on one batch, as a function of its weights alone.

        All other networks, the critic's target and the noise are fixed. One objective covers both critics
        (Arnob et al. 2021, algorithm 1 prunes θ_1 and copies it to θ_2, which read literally would leave
        two equal critics and no minimum of two to take).
        """
        actor, critic, vae = (networks[name] for name in ("actor", "critic", "vae"))
        batch_size = batch.state.shape[1]
        vae_noise = randomness.normal(batch_size, self.latent_size)
        target_noise = randomness.normal(batch_size, self.config.target_samples, self.latent_size)
        y = self.td_target(actor, critic, vae, batch, target_noise)  # at initialization θ' = θ and φ' = φ
        with torch.no_grad():
            action = sample(vae, batch.state, randomness.normal(batch_size, self.latent_size), Z_LIMIT)

        def actor_objective(weights: Weights) -> Tensor:
            perturbed = self.perturb(actor.with_weights(weights), batch.state, action)
            return -q(critic, Q1, batch.state, perturbed).mean()

        def critic_objective(weights: Weights) -> Tensor:
            return td_loss(critic.with_weights(weights), batch, y).sum()

        def vae_objective(weights: Weights) -> Tensor:
            reconstruction, kl = vae_loss(vae.with_weights(weights), batch.state, batch.action, vae_noise)
            return (reconstruction + 0.5 * kl).sum()

        return {
            "actor": Objective(actor_objective, lambda weights: _flow(weights, ACTOR), scores),
            "critic": Objective(
                critic_objective, lambda weights: _flow(weights, Q1) + _flow(weights, Q2), scores
            ),
            "vae": Objective(vae_objective, vae_flow, scores),
        }


def q(critic: AnyNetwork, layers: tuple[str, ...], state: Tensor, action: Tensor) -> Tensor:
    """Q_θj(s, a) of the critic made of `layers`: (K, batch)."""
    return mlp(critic, layers, state, action).squeeze(-1)


def td_loss(critic: AnyNetwork, batch: Batch, y: Tensor) -> Tensor:
    """Σ_j (y - Q_θj(s, a))², averaged over the batch: (K,)."""
    if isinstance(critic, SparseNetwork):
        return sparse_losses().td_loss(critic, batch.state, batch.action, y)
    error1 = q(critic, Q1, batch.state, batch.action) - y
    error2 = q(critic, Q2, batch.state, batch.action) - y
    return error1.square().mean(dim=1) + error2.square().mean(dim=1)


def _flow(weights: Weights, layers: tuple[str, ...]) -> Tensor:
    agents, inputs, _ = weights[layers[0]].shape
    return linear_flow(weights, layers, weights[layers[0]].new_ones(agents, 1, inputs)).sum()
