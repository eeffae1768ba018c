"""Behaviour cloning as in BEAR's code (Kumar et al. 2019): the `BC` of Arnob et al. 2021, for K agents.

There, BC is BCQ with `cloning=True`: it acts by the VAE's decoder alone, on z within ±0.25. That code goes on
training an actor and critics that its policy never reads; here only the VAE is trained, which leaves the
policy as it was. (An MLP from state to action is another baseline that goes by the same name.)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from tasks.offline_rl.data.replay import Batch
from tasks.offline_rl.networks import AnyNetwork, Layers, Network, PerceptronLayers, Weights
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

Z_LIMIT = 0.25
"""Samples of the VAE's prior are kept within ± this: half of BCQ's."""


@dataclass(frozen=True)
class BCConfig:
    """Hyper-parameters; the defaults are those of BEAR's code."""

    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Of Adam."""
    batch_size: Annotated[int, Ge(1)] = 100
    normalize_states: bool = False
    """Train on states of zero mean and unit variance (see `normalization.py`), which the paper doesn't."""


class BC:
    """The algorithm for one size of states and actions. Networks and data are given to each method."""

    targets: ClassVar[tuple[str, ...]] = ()
    state_layers: ClassVar[Mapping[str, tuple[str, ...]]] = {"vae": ("encoder.0", "decoder.0")}
    """Layers whose inputs begin with the state."""
    perceptrons: ClassVar[Mapping[str, tuple[PerceptronLayers, ...]]] = {"vae": VAE_PERCEPTRONS}
    """How each network's layers are joined."""
    parts: ClassVar[Parts] = {"vae": VAE_PARTS}
    """What is pruned on its own in scope `part`."""

    def __init__(self, config: BCConfig, state_size: int, action_size: int) -> None:
        self.config = config
        self.latent_size = latent_size(action_size)
        self.layers: Mapping[str, Layers] = {"vae": vae_layers(state_size, action_size)}
        self.noise_shape: tuple[int, ...] = (self.latent_size,)

    def update(self, learner: Learner, batch: Batch, randomness: Randomness) -> dict[str, Tensor]:
        """One step of the VAE down MSE + KL / 2. Losses of each agent, (K,)."""
        noise = randomness.normal(batch.state.shape[1], self.latent_size)
        reconstruction, kl = vae_loss(learner.networks["vae"], batch.state, batch.action, noise)
        learner.minimize("vae", reconstruction + 0.5 * kl)
        return {"reconstruction_loss": reconstruction.detach(), "kl": kl.detach()}

    @torch.no_grad()
    def act(self, networks: Mapping[str, AnyNetwork], state: Tensor, noise: Tensor) -> Tensor:
        """D(s, z): (K, batch, state) to (K, batch, action). `noise` is (K, batch, latent)."""
        return sample(networks["vae"], state, noise, Z_LIMIT)

    def objectives(
        self, networks: Mapping[str, Network], batch: Batch, randomness: Randomness, scores: torch.Generator
    ) -> dict[str, Objective]:
        """The VAE's own loss on one batch with fixed noise, as a function of its weights."""
        vae = networks["vae"]
        noise = randomness.normal(batch.state.shape[1], self.latent_size)

        def objective(weights: Weights) -> Tensor:
            reconstruction, kl = vae_loss(vae.with_weights(weights), batch.state, batch.action, noise)
            return (reconstruction + 0.5 * kl).sum()

        return {"vae": Objective(objective, vae_flow, scores)}
