"""Updates per second of pruned agents, by kind of execution: `python -m benchmarks.offline_rl_updates`.

The agents have HalfCheetah's sizes and SNIP's masks, and train on random transitions, one agent at a time on
one thread. `masked` computes dense products with zeros for pruned weights, `sparse` computes with the kept
weights alone. `SPARSE_DENSITY` in `singleshot/rl/execution.py` says where `sparse` is faster.
"""

import argparse

import torch

from benchmarks.agents import CONFIGS, random_transitions, updating
from benchmarks.command import positive, run_main
from benchmarks.paired import heading, print_table, take_turns
from pipelines.engine.execution import keep_freed_memory
from singleshot.rl.data.replay import ReplayBuffer
from singleshot.rl.execution import Execution

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


if __name__ == "__main__":
    run_main(main)
