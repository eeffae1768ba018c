"""Agents of HalfCheetah's sizes on random transitions, whose updates are to be timed."""

from collections.abc import Callable

import numpy as np
import torch

from singleshot.rl.agents import AgentSpec, dense_masks, initial_networks, make_algorithm
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
    stack: int = 1,
    device: str = "cpu",
    execution: Execution = "auto",
) -> Callable[[], None]:
    """A function that updates a stack of agents (seeds 0, 1, …) under SNIP's masks; sparsity 0 is dense."""
    config = CONFIGS[algorithm_name]
    specs = [
        AgentSpec(ENVIRONMENT, algorithm_name, "snip" if sparsity else "dense", sparsity, seed)
        for seed in range(stack)
    ]
    algorithm = make_algorithm(specs[0], config, SPACES.observation_size, SPACES.action_size)
    own = [
        make_masks(algorithm, data, spec.pruner, spec.sparsity, spec.seed)
        if sparsity
        else dense_masks(algorithm)
        for spec in specs
    ]
    masks = {
        name: {layer: torch.stack([agent[name][layer].mT for agent in own]) for layer in layers}
        for name, layers in own[0].items()
    }
    seeds = [spec.seed for spec in specs]
    learner = Learner(
        initial_networks(algorithm, seeds),
        algorithm,
        masks if sparsity else None,
        device,
        execution,
        TrainingConfig().updates,
    )
    randomness = Randomness("training", seeds, device=device)

    def run() -> None:
        for number in range(updates):
            batch = data.sample(randomness, config.batch_size)
            learner.update(batch, randomness, whole=number % algorithm.delay == 0)
        if device == "cuda":
            torch.cuda.synchronize()

    return run
