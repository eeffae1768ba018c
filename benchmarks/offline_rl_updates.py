"""Gradient updates a second of BC and BCQ: `python -m benchmarks.offline_rl_updates [--device cuda]`.

HalfCheetah's sizes and SNIP's masks, on random transitions; one compute thread. Variants take turns, so that
a machine's drift hits all alike, and CPU time stands beside wall time: their ratio is near 1 if undisturbed.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from datetime import date

import numpy as np
import torch

from pipelines.engine.provenance import processor
from tasks.offline_rl.agents import (
    AgentSpec,
    AlgorithmConfig,
    AlgorithmName,
    dense_masks,
    initial_networks,
    make_algorithm,
)
from tasks.offline_rl.bc import BCConfig
from tasks.offline_rl.bcq import BCQConfig
from tasks.offline_rl.datasets import Transitions
from tasks.offline_rl.environments import TASKS
from tasks.offline_rl.learner import Learner
from tasks.offline_rl.prune_agent import PruneParams, make_masks
from tasks.offline_rl.randomness import Randomness
from tasks.offline_rl.replay import ReplayBuffer
from tasks.pruning.masks import PruningConfig

TASK = TASKS["HalfCheetah"]
CONFIGS: dict[AlgorithmName, AlgorithmConfig] = {"bc": BCConfig(), "bcq": BCQConfig()}
Variant = tuple[AlgorithmName, float, int]
"""Algorithm, sparsity, agents in the stack."""
ROUNDS = 7
UPDATES = {"bc": 60, "bcq": 20}


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    arguments = _arguments()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as in training
    data = ReplayBuffer(_random_transitions(10_000), arguments.device)
    variants = {
        (algorithm, sparsity, stack): _updates(algorithm, sparsity, stack, data, arguments.device)
        for algorithm in CONFIGS
        for sparsity in (0.0, 0.9, 0.95)
        for stack in dict.fromkeys((1, arguments.stack))
    }
    seconds = _interleaved(variants)
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else processor()
    print(f"{date.today()}, {device}, one thread, torch {torch.__version__}, batch 100\n")
    print("| algorithm | sparsity | agents in the stack | updates/s | agents × updates/s | CPU / wall time |")
    print("|---|---|---|---|---|---|")
    for (algorithm, sparsity, stack), times in seconds.items():
        wall = statistics.median(wall for wall, _ in times)
        busy = statistics.median(cpu / wall for wall, cpu in times)
        rate = 1 / wall
        print(f"| {algorithm} | {sparsity:g} | {stack} | {rate:.0f} | {stack * rate:.0f} | {busy:.2f} |")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--stack", type=int, default=4, help="agents in the larger stack (default 4)")
    return parser.parse_args()


def _random_transitions(count: int) -> Transitions:
    generator = np.random.default_rng(0)
    return Transitions.cast(
        generator.standard_normal((count, TASK.observation_size)),
        generator.uniform(-1, 1, (count, TASK.action_size)),
        generator.standard_normal(count),
        generator.standard_normal((count, TASK.observation_size)),
        np.zeros(count, np.bool_),
    )


def _updates(
    algorithm_name: AlgorithmName, sparsity: float, stack: int, data: ReplayBuffer, device: str
) -> Callable[[], None]:
    """What makes UPDATES updates of a stack of agents, seeds 0, 1, …"""
    config = CONFIGS[algorithm_name]
    specs = [
        AgentSpec("HalfCheetah", algorithm_name, "snip" if sparsity else "dense", sparsity, seed)
        for seed in range(stack)
    ]
    algorithm = make_algorithm(specs[0], config)
    own = [
        make_masks(PruneParams(spec, config, PruningConfig()), data, device)
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
        initial_networks(algorithm, seeds), algorithm, masks if sparsity else None, 1e-3, device
    )
    randomness = Randomness("training", seeds, device=device)

    def run() -> None:
        for _ in range(UPDATES[algorithm_name]):
            algorithm.update(learner, data.sample(randomness, config.batch_size), randomness)
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def _interleaved(
    variants: dict[Variant, Callable[[], None]],
) -> dict[Variant, list[tuple[float, float]]]:
    """Wall and CPU seconds an update of each variant, by round; the first round warms up and is dropped."""
    seconds: dict[Variant, list[tuple[float, float]]] = {key: [] for key in variants}
    for _ in range(ROUNDS + 1):
        for key, run in variants.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            updates = UPDATES[key[0]]
            measured = (time.perf_counter() - wall) / updates, (time.process_time() - cpu) / updates
            seconds[key].append(measured)
    return {key: times[1:] for key, times in seconds.items()}


if __name__ == "__main__":
    main()
