"""Agents of HalfCheetah's sizes on random transitions, whose updates are to be timed."""

from collections.abc import Callable

import numpy as np
import torch

from singleshot.rl.agents import AgentSpec, initial_networks, make_algorithm
from singleshot.rl.algorithm import AlgorithmConfig
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.rl.algorithms.iql import IQLConfig
from singleshot.rl.algorithms.td3bc import TD3BCConfig
from singleshot.rl.data.replay import ReplayBuffer
from singleshot.rl.data.transitions import Transitions
from singleshot.rl.environments import LOCOMOTION, spaces_of
from singleshot.rl.execution import Execution
from singleshot.rl.pruning import make_masks
from singleshot.rl.randomness import Randomness
from singleshot.rl.training.learner import Learner
from tasks.train_agents import TrainingConfig

ENVIRONMENT = "HalfCheetah"
SPACES = spaces_of(LOCOMOTION[ENVIRONMENT])
CONFIGS: dict[str, AlgorithmConfig] = {
    "bc": BCConfig(),
    "bcq": BCQConfig(),
    "td3bc": TD3BCConfig(),
    "iql": IQLConfig(),
}


def random_transitions(count: int) -> Transitions:
    """Transitions with standard normal states and rewards, uniform actions, and no ends of episodes."""
    generator = np.random.default_rng(0)
    return Transitions.cast(
        generator.standard_normal((count, SPACES.observation_size)),
        generator.uniform(-1, 1, (count, SPACES.action_size)),
        generator.standard_normal(count),
        generator.standard_normal((count, SPACES.observation_size)),
        np.zeros(count, np.bool_),
    )


def updating(
    algorithm_name: str,
    sparsity: float,
    data: ReplayBuffer,
    updates: int,
    *,
    execution: Execution = "auto",
) -> Callable[[], None]:
    """A function that updates an agent (seed 0) under SNIP's masks; sparsity 0 is dense."""
    config = CONFIGS[algorithm_name]
    spec = AgentSpec(ENVIRONMENT, algorithm_name, "snip" if sparsity else "dense", sparsity, 0)
    algorithm = make_algorithm(spec, config, SPACES.observation_size, SPACES.action_size)
    masks = None
    if sparsity:
        made = make_masks(algorithm, data, spec.pruner, spec.sparsity, spec.seed)
        masks = {
            name: {layer: torch.stack([mask.mT]) for layer, mask in layers.items()}
            for name, layers in made.items()
        }
    networks = initial_networks(algorithm, [0])
    learner = Learner(networks, algorithm, masks, "cpu", execution, TrainingConfig().updates)
    randomness = Randomness("training", [0])

    def run() -> None:
        for number in range(updates):
            batch = data.sample(randomness, config.batch_size)
            learner.update(batch, randomness, whole=number % algorithm.delay == 0)

    return run
