"""Whether the default profile gives the same results with other seeds: `python -m benchmarks.default_seeds`.

Its agents are trained with three disjoint sets of seeds. For each environment, algorithm and pruner, the
table has each set's mean scores of dense and pruned agents, the share that pruned agents retain, and how far
the sets differ. To compare processors, run it on both. To compare roundings on one processor with Intel's
MKL, run it again with another store, so that finished cells are computed again:

    MKL_CBWR=COMPATIBLE SINGLESHOT_CELLS=build/compatible python -m benchmarks.default_seeds --sets 1
"""

import argparse
import os
from collections.abc import Iterator, Sequence

import pandas

from benchmarks.command import positive, run_main
from benchmarks.paired import heading, table
from pipelines.cli.study import compute, results
from pipelines.config.params import Config, configuration
from pipelines.engine.cells import CellStore
from pipelines.engine.processes import ends_with_its_parents
from pipelines.engine.remote_cells import open_store
from pipelines.engine.stage import CELLS
from singleshot.pruning.variant import DENSE
from tasks.reporting.look import name
from tasks.reporting.scores import agent_scores
from tasks.reporting.statistics import interquartile_mean


def main() -> None:
    """Compute what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sets", type=positive(int), default=3, help="sets of seeds (default: 3)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings to replace in conf/")
    arguments = parser.parse_args()
    store = open_store(CELLS)
    configs = list(_configs(arguments.sets, arguments.overrides))
    with ends_with_its_parents():
        for config in configs:
            compute(config, list(config.offline_rl.agents()), store)
    print(heading("torch", threads=os.cpu_count() or 1))
    sets = [_means(config, store) for config in configs]
    columns = ["agents", *(f"set {n}: dense, pruned, retention" for n in range(len(sets))), "sets differ by"]
    print(table(columns, _rows(sets)))


def _configs(sets: int, overrides: Sequence[str]) -> Iterator[Config]:
    """The default profile once per set, each with the seeds that follow those of the previous set."""
    count = len(configuration("profile=default", *overrides).offline_rl.sweep.seeds)
    for first in range(0, sets * count, count):
        seeds = list(range(first, first + count))
        yield configuration("profile=default", *overrides, f"offline_rl.sweep.seeds={seeds}")


def _means(config: Config, store: CellStore) -> "pandas.Series[float]":
    """Interquartile mean over a set's seeds, as in `statistics.csv`, by environment, algorithm, pruner."""
    rows = [results(config, agent, store)["scores.csv"] for agent in config.offline_rl.agents()]
    evaluations = pandas.concat(rows).astype(dict.fromkeys(["update", "d4rl_score"], float))
    kind = ["environment", "algorithm", "pruner"]
    scores = agent_scores(evaluations, [*kind, "seed"]).groupby(kind)["d4rl_score"]
    return scores.agg(lambda own: float(interquartile_mean(own.to_numpy()[None])))


def _rows(sets: Sequence["pandas.Series[float]"]) -> Iterator[Sequence[str]]:
    for environment, algorithm, pruner in sets[0].index:
        if pruner == DENSE:
            continue
        means = [(own[environment, algorithm, DENSE], own[environment, algorithm, pruner]) for own in sets]
        retentions = [pruned / dense for dense, pruned in means]
        cells = [
            f"{dense:.0f}, {pruned:.0f}, {kept:.2f}"
            for (dense, pruned), kept in zip(means, retentions, strict=True)
        ]
        yield (
            f"{environment}, {name(algorithm)}, {name(pruner)}",
            *cells,
            f"{max(retentions) - min(retentions):.2f}",
        )


if __name__ == "__main__":
    run_main(main)
