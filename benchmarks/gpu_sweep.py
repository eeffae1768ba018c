"""Agents trained side by side on a GPU, and one at a time: `python -m benchmarks.gpu_sweep [--device cpu]`.

The agents are the grid of one environment and algorithm in the profile `paper`, HalfCheetah and BCQ: dense,
and with the masks of SNIP and GraSP at six sparsities, with five seeds each: 65 agents. With *calls*,
operations are launched one by one, as every peer does for one agent at a time; with a *graph*, a whole update
is launched at once.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.agents import ENVIRONMENT, random_transitions
from benchmarks.command import check_device, positive, run_main
from benchmarks.paired import heading, table, take_turns
from pipelines.catalog.agents import agents, algorithm_config, training_config
from pipelines.config.params import Config, configuration
from singleshot.errors import UserError
from singleshot.pruning.variant import DENSE
from singleshot.rl.agents import AgentSpec
from singleshot.rl.environments import LOCOMOTION
from singleshot.rl.training.cuda_graph import repeat
from singleshot.rl.training.stack import Stack
from tasks.job import Job
from tasks.prune_agent import PruneParams, prune_agent
from tasks.train_agents import Training, TrainParams

TRANSITIONS = 1_000_000
UPDATES = {"cuda": 200, "cpu": 2}
"""Number of updates in a turn."""


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    arguments = _arguments()
    check_device(arguments.device)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as in training
    device, updates = arguments.device, UPDATES[arguments.device]
    with tempfile.TemporaryDirectory() as directory:
        jobs = _jobs(Path(directory), arguments.agents, device)
        stacks, gigabytes = {}, {}
        for name, own, captured in _variants(jobs, device):
            stacks[name], gigabytes[name] = _stack(own, captured, updates)
    compared = take_turns(
        {name: partial(_train, stack, updates) for name, stack in stacks.items()},
        busy=0 if device == "cuda" else 0.95,
    )
    rows = []
    for name, stack in stacks.items():
        rate = updates / compared.seconds(name).wall
        ratio = compared.speedup(name, next(iter(stacks)))
        count = len(stack.specs)
        rows.append(
            (name, f"{rate:.1f}", f"{count * rate:.0f}", f"{count * ratio.median:.1f}", gigabytes[name])
        )
    print(heading("torch", device=torch.cuda.get_device_name() if device == "cuda" else None))
    print(table(("", "updates/s", "agents × updates/s", "times the first", "peak GiB"), rows))
    print(f"\nMedians of {len(compared.rounds)} rounds of {updates} updates, in turn.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument(
        "--agents", type=positive(int), default=65, help="of the grid, spread evenly (default: all 65)"
    )
    return parser.parse_args()


def _variants(jobs: Sequence[Job], device: str) -> list[tuple[str, Sequence[Job], bool]]:
    """Name, agents, and whether a graph makes their updates. The first variant is what other libraries do."""
    alone, together = "one agent", f"{len(jobs)} agents"
    called = [(f"{alone}, calls", jobs[:1], False), (f"{together}, calls", jobs, False)]
    captured = [(f"{alone}, graph", jobs[:1], True), (f"{together}, graph", jobs, True)]
    return called + captured if device == "cuda" else called


def _jobs(directory: Path, count: int, device: str) -> list[Job]:
    """`count` agents of the grid with their masks, a dense agent first."""
    config = configuration("profile=paper")
    grid = [agent for agent in agents(config) if (agent.environment, agent.algorithm) == (ENVIRONMENT, "bcq")]
    if count > len(grid):
        raise UserError(f"--agents {count}: the grid has {len(grid)}; give no more")
    grid.sort(key=lambda agent: agent.sparsity)
    random_transitions(TRANSITIONS).save(directory / "transitions.safetensors")
    return [_job(grid[i * len(grid) // count], config, directory, device) for i in range(count)]


def _job(agent: AgentSpec, config: Config, directory: Path, device: str) -> Job:
    inputs, algorithm = {"dataset": directory / "transitions.safetensors"}, algorithm_config(config, agent)
    output = directory / str(agent)
    output.mkdir()
    if agent.pruner != DENSE:
        list(
            prune_agent(
                [Job(PruneParams(agent, algorithm, config.offline_rl.pruning), inputs, output, device)]
            )
        )
        inputs["masks"] = output / "masks.safetensors"
    training, evaluation = training_config(config, agent), config.offline_rl.evaluation
    params = TrainParams(agent, LOCOMOTION[ENVIRONMENT], algorithm, training, evaluation)
    return Job(params, inputs, output, device)


def _stack(jobs: Sequence[Job], captured: bool, updates: int) -> tuple[Stack, str]:
    """Agents that have trained a little, and their peak memory on a GPU."""
    cuda = jobs[0].device == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    # As few environments as possible, since nothing is scored here.
    params = replace(jobs[0].params.evaluation, episodes=1)
    training = Training([replace(job, params=replace(job.params, evaluation=params)) for job in jobs])
    training.close()
    stack = training.stack
    if not captured:
        stack.make_updates = partial(repeat, stack.make_update, stack.algorithm.delay)
    _train(stack, updates)
    return stack, f"{(torch.cuda.max_memory_allocated() - before) / 2**30:.2f}" if cuda else ""


def _train(stack: Stack, updates: int) -> None:
    stack.train_until(stack.update + updates)  # returns when the device is done


if __name__ == "__main__":
    run_main(main)
