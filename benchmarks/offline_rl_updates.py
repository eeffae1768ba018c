"""Updates per second of pruned agents, by kind of execution: `python -m benchmarks.offline_rl_updates`.

The agents have HalfCheetah's sizes and SNIP's masks, and train on random transitions, one agent at a time on
one thread. `masked` computes dense products with zeros for pruned weights, `sparse` computes with the kept
weights alone. `SPARSE_DENSITY` in `singleshot/rl/networks.py` says where `sparse` is faster.
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.command import positive, run_main
from benchmarks.paired import heading, print_table, take_turns
from pipelines.engine.run import keep_freed_memory
from singleshot.rl.agents import AgentSpec, initial_networks, make_algorithm
from singleshot.rl.algorithm import AlgorithmConfig
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.rl.algorithms.iql import IQLConfig
from singleshot.rl.algorithms.td3bc import TD3BCConfig
from singleshot.rl.data.replay import Randomness, ReplayBuffer
from singleshot.rl.data.transitions import Transitions
from singleshot.rl.networks import Execution
from singleshot.rl.pruning import make_masks
from singleshot.rl.training.learner import Learner
from tasks.train_agents import TrainingConfig

ENVIRONMENT = "HalfCheetah"
STATE_SIZE, ACTION_SIZE = 17, 6
"""Those of the environment."""
CONFIGS: dict[str, AlgorithmConfig] = {
    "bc": BCConfig(),
    "bcq": BCQConfig(),
    "td3bc": TD3BCConfig(),
    "iql": IQLConfig(),
}
SPARSITIES = (0.25, 0.5, 0.75, 0.9, 0.95)
UPDATES: dict[str, int] = {"bc": 30, "bcq": 10, "td3bc": 40, "iql": 40}
"""Number of updates in a turn: some tenths of a second for dense agents."""
EXECUTIONS: tuple[Execution, ...] = ("masked", "sparse")


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=positive(int), default=7, help="rounds to compare (default: 7)")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as in training, like the next line
    keep_freed_memory()
    data = ReplayBuffer(random_transitions(10_000))
    print(heading("torch", "numba"))
    columns = ("algorithm", "sparsity", "updates/s dense", "masked", "sparse", "times masked", "by CPU time")
    rows = (_row(algorithm, sparsity, data, rounds) for algorithm in CONFIGS for sparsity in SPARSITIES)
    print_table(columns, rows)


def _row(algorithm: str, sparsity: float, data: ReplayBuffer, rounds: int) -> tuple[object, ...]:
    updates = UPDATES[algorithm]
    variants = {"dense": updating(algorithm, 0, data, updates)} | {
        execution: updating(algorithm, sparsity, data, updates, execution=execution)
        for execution in EXECUTIONS
    }
    compared = take_turns(variants, rounds)
    rates = (f"{updates / compared.seconds(variant).wall:.0f}" for variant in variants)
    ratios = (compared.speedup("sparse", "masked"), compared.speedup("sparse", "masked", of="cpu"))
    return algorithm, f"{sparsity:.0%}", *rates, *ratios


def random_transitions(count: int) -> Transitions:
    """Transitions with standard normal states and rewards, uniform actions, and no ends of episodes."""
    generator = np.random.default_rng(0)
    return Transitions.cast(
        generator.standard_normal((count, STATE_SIZE)),
        generator.uniform(-1, 1, (count, ACTION_SIZE)),
        generator.standard_normal(count),
        generator.standard_normal((count, STATE_SIZE)),
        np.zeros(count, np.bool_),
    )


def updating(
    algorithm_name: str, sparsity: float, data: ReplayBuffer, updates: int, *, execution: Execution = "auto"
) -> Callable[[], None]:
    """A function that updates an agent (seed 0) under SNIP's masks; sparsity 0 is dense."""
    config = CONFIGS[algorithm_name]
    spec = AgentSpec(ENVIRONMENT, algorithm_name, "snip" if sparsity else "dense", sparsity, 0)
    algorithm = make_algorithm(spec, config, STATE_SIZE, ACTION_SIZE)
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


if __name__ == "__main__":
    run_main(main)
