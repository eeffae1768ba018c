"""Variants that take turns in one process (A B C A B C …), so that a machine's drift affects all alike.

Speeds are compared round by round, as the median of the rounds' ratios moves less than the ratio of medians.
A round in which another program used the processor, so that CPU time fell behind wall time, is repeated.
"""

import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from typing import Generic, Literal, TypeVar

import joblib

from pipelines.engine.provenance import processor

Key = TypeVar("Key")


@dataclass(frozen=True)
class Seconds:
    """Wall-clock seconds, and CPU seconds summed over cores."""

    wall: float
    cpu: float

    def __sub__(self, earlier: "Seconds") -> "Seconds":
        return Seconds(self.wall - earlier.wall, self.cpu - earlier.cpu)

    @property
    def busy(self) -> float:
        """Mean number of cores at work: 1 for one undisturbed thread, less if it waited."""
        return self.cpu / self.wall


Clock = Callable[[], Seconds]


def process_clock() -> Seconds:
    """The time now; CPU time is that of all threads of this process."""
    return Seconds(time.perf_counter(), time.process_time())


@dataclass(frozen=True)
class Spread:
    """The spread of a figure over rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Median, smallest and largest."""
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Comparison(Generic[Key]):
    """Seconds of every variant in every round."""

    rounds: Sequence[Mapping[Key, Seconds]]
    disturbed: int
    """Number of these rounds that were disturbed; they count if there were too few undisturbed ones."""

    def seconds(self, variant: Key) -> Seconds:
        """Medians over the rounds."""
        return Seconds(
            statistics.median(each[variant].wall for each in self.rounds),
            statistics.median(each[variant].cpu for each in self.rounds),
        )

    def speedup(self, variant: Key, baseline: Key, of: Literal["wall", "cpu"] = "wall") -> Spread:
        """How many times as fast as `baseline`: the baseline's seconds / the variant's, in each round."""
        return Spread.of(getattr(each[baseline], of) / getattr(each[variant], of) for each in self.rounds)


def take_turns(
    variants: Mapping[Key, Callable[[], object]],
    rounds: int = 7,
    *,
    busy: float = 0.95,
    tries: int = 3,
    clock: Clock = process_clock,
) -> Comparison[Key]:
    """Run each variant once per round. A round before the first warms up and isn't counted.

    Args:
        variants: functions to time, by any key; each call should take some tenths of a second.
        rounds: number of rounds to compare.
        busy: a round is disturbed if a variant kept fewer cores than this at work. Give somewhat less than
            the number of threads, and 0 for work that waits (for a GPU or for child processes).
        tries: at most `tries` · `rounds` rounds are made; if too few of these are undisturbed, the least
            disturbed ones count.
        clock: function that returns the time now.
    """
    for run in variants.values():
        run()
    made: list[dict[Key, Seconds]] = []
    while len(made) < tries * rounds and sum(_busy(each) >= busy for each in made) < rounds:
        made.append({key: timed(run, clock) for key, run in variants.items()})
    kept = sorted(made, key=_busy, reverse=True)[:rounds]
    return Comparison(kept, sum(_busy(each) < busy for each in kept))


def timed(run: Callable[[], object], clock: Clock = process_clock) -> Seconds:
    """Seconds of one call."""
    start = clock()
    run()
    return clock() - start


def _busy(seconds: Mapping[Key, Seconds]) -> float:
    """Cores at work for the variant that was disturbed most in a round."""
    return min(each.busy for each in seconds.values())


def heading(*packages: str, threads: int = 1) -> str:
    """The lines above a table: the command, then the date, the machine and the versions.

    Args:
        packages: installed packages whose versions matter.
        threads: number of threads that compute.
    """
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    cores = f"{joblib.cpu_count()} cores, {threads} thread{'s' * (threads > 1)}"
    command = shlex.join(["python", *sys.orig_argv[1:]])
    return f"`{command}`\n\n{date.today()}, {processor()}, {cores}, {versions}\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    return "\n".join([_row(columns), "|---" * len(columns) + "|", *map(_row, rows)])


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table, each row as soon as it is measured."""
    print(table(columns, []))
    for row in rows:
        print(_row(row), flush=True)


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
