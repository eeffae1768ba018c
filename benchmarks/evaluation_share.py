"""Time of scoring agents as a share of training them: `python -m benchmarks.evaluation_share`.

One agent at a time, on one thread, with the settings of the profiles `default` and `paper`: dense, and with
SNIP's masks at 95 % sparsity. HalfCheetah, whose episodes always take 1,000 steps, is the most expensive
environment to score. The share is the time of an evaluation divided by that of the updates between two
evaluations.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import torch

from benchmarks.agents import ENVIRONMENT, random_transitions
from benchmarks.command import run_main
from benchmarks.paired import heading, print_table, take_turns
from pipelines.catalog.agents import algorithm_config, training_config
from pipelines.config.params import Config, configuration
from singleshot.pruning.variant import variant_name
from singleshot.rl.agents import AgentSpec
from singleshot.rl.environments import LOCOMOTION
from tasks.job import Job
from tasks.prune_agent import PruneParams, prune_agent
from tasks.train_agents import Training, TrainParams

PROFILES = ("default", "paper")
VARIANTS = (("dense", 0.0), ("snip", 0.95))
ROUNDS = 3
UPDATES = 100
"""Number of updates in a turn."""


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None).parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as in training
    print(heading("torch", "gymnasium", "mujoco"))
    columns = ("profile", "agent", "updates between", "their CPU s", "evaluation, CPU s", "share", "by wall")
    print_table(columns, _rows())


def _rows() -> Iterator[tuple[object, ...]]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        random_transitions(10_000).save(directory / "transitions.safetensors")
        for profile in PROFILES:
            config = configuration(f"profile={profile}")
            for params in _agents(config):
                yield (profile, *_measure(params, config, directory))


def _agents(config: Config) -> Iterator[TrainParams]:
    for algorithm in ("bc", "bcq"):
        for pruner, sparsity in VARIANTS:
            agent = AgentSpec(ENVIRONMENT, algorithm, pruner, sparsity, seed=0)
            own, training = algorithm_config(config, agent), training_config(config, agent)
            yield TrainParams(agent, LOCOMOTION[ENVIRONMENT], own, training, config.offline_rl.evaluation)


def _measure(params: TrainParams, config: Config, directory: Path) -> tuple[object, ...]:
    agent, between = params.agent, params.training.eval_every
    inputs = {"dataset": directory / "transitions.safetensors", "masks": directory / "masks.safetensors"}
    if agent.pruner != "dense":
        pruning = PruneParams(agent, params.algorithm, config.offline_rl.pruning)
        list(prune_agent([Job(pruning, inputs, directory)]))
    training = Training([Job(params, inputs, directory)])
    stack = training.stack
    with closing(training):
        compared = take_turns(
            {
                "updates": lambda: training.train_until(stack.update + UPDATES),
                "evaluation": lambda: list(training.evaluate()),
            },
            ROUNDS,
        )
    trained, scored = compared.seconds("updates"), compared.seconds("evaluation")
    factor = between / UPDATES
    return (
        f"{agent.algorithm}, {variant_name(agent.pruner, agent.sparsity)}",
        f"{between:,}",
        f"{factor * trained.cpu:.1f}",
        f"{scored.cpu:.1f}",
        f"{scored.cpu / (factor * trained.cpu):.0%}",
        f"{scored.wall / (factor * trained.wall):.0%}",
    )


if __name__ == "__main__":
    run_main(main)
