"""Latency of several runtimes that take turns, so that a machine's drift affects all of them equally.

Imports only NumPy: a runtime's environment may lack everything else.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from singleshot.io.own_process import ProcessFailed

TURN_S = 0.01
"""Approximate duration of a turn in seconds; a turn with a single, longer call lasts as long as the call."""
LONG_S = 1.0
"""A first call of this many seconds or more is no hiccup, and is not repeated to fill a shorter time."""
USUAL_QUANTILE = 0.75
"""Quantile of the turns' cores at work that counts as usual: at least every fourth turn is undisturbed."""
DISTURBED_BELOW = 0.8
"""Fraction of that quantile: a turn with fewer cores at work had to wait for something else."""


@dataclass(frozen=True)
class Samples:
    """Times and memory of one turn of calls."""

    wall_s: Sequence[float]
    cpu_s: Sequence[float]
    """Processor time of each call, of all threads of the process."""
    peak_memory_bytes: int | None = None
    """Peak of the process since the network was prepared; None if it is unknown."""

    @property
    def cpu_per_wall(self) -> float:
        """Average number of cores at work."""
        return sum(self.cpu_s) / sum(self.wall_s)


def time_calls(calls: Sequence[Callable[[], object]]) -> Samples:
    """Elapsed time and processor time of each call."""
    wall, cpu = [], []
    for call in calls:
        # Reading processor time is a system call, so it stays outside the wall-clock time.
        cpu_start = time.process_time()
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        cpu.append(time.process_time() - cpu_start)
        wall.append(end - start)
    return Samples(wall, cpu)


class Contender(Protocol):
    """A prepared network that can be timed, e.g. a :class:`~singleshot.export.isolation.Worker`."""

    def measure(self, calls: int) -> Samples:
        """Time `calls` calls."""
        ...


@dataclass(frozen=True)
class Timing:
    """Times of one network on one runtime, in steady state; unknown before it is timed."""

    p50_ms: float | None = None
    """Median wall-clock time of a call in milliseconds, from arrays to arrays."""
    p90_ms: float | None = None
    p99_ms: float | None = None
    cpu_p50_ms: float | None = None
    """Median processor time of a call, of all threads, in milliseconds. If it is less than `p50_ms` on one
    thread, something else ran on that core."""
    calls: int | None = None
    """Number of calls that the percentiles are taken over, without those of disturbed turns."""
    disturbed_turns: int | None = None
    """Number of turns that don't count, because something else on the machine used the processor."""
    peak_memory_mb: float | None = None
    """Peak memory of the runtime's process in MB, without GPU memory."""

    @classmethod
    def of(cls, turns: Sequence[Samples]) -> "Timing":
        """Times of the turns that nothing disturbed; percentiles are linear between the nearest two calls."""
        kept = undisturbed(turns)
        wall = 1e3 * np.concatenate([turn.wall_s for turn in kept])
        cpu = 1e3 * np.concatenate([turn.cpu_s for turn in kept])
        p50, p90, p99 = (float(value) for value in np.percentile(wall, [50, 90, 99]))
        peaks = [turn.peak_memory_bytes / 1e6 for turn in turns if turn.peak_memory_bytes is not None]
        return cls(
            p50, p90, p99, float(np.median(cpu)), len(wall), len(turns) - len(kept), max(peaks, default=None)
        )


def undisturbed(turns: Sequence[Samples]) -> list[Samples]:
    """The turns with the usual share of the processor, which are at least a quarter of all turns.

    Runtimes wait for the processor only, so a turn with a smaller share shared the processor with something
    else on the machine.
    """
    shares = [turn.cpu_per_wall for turn in turns]
    usual = np.quantile(shares, USUAL_QUANTILE)
    return [turn for turn, share in zip(turns, shares, strict=True) if share >= DISTURBED_BELOW * usual]


@dataclass
class _Turns:
    """The turns that one contender has to take, and has taken."""

    contender: Contender
    calls: int
    """Number of calls in each turn."""
    wanted: int
    taken: list[Samples] = field(default_factory=list)

    @classmethod
    def warmed_up(cls, contender: Contender, seconds: float) -> "_Turns":
        """Warm up a contender, and plan as many turns of about `TURN_S` as fill `seconds`."""
        tries = [contender.measure(1)]
        if sum(tries[0].wall_s) < max(seconds, LONG_S):
            tries.append(contender.measure(1))
        # The faster of two calls, so that a hiccup in the first doesn't make a fast network seem slow.
        call_s = min(sum(samples.wall_s) for samples in tries)
        if call_s >= TURN_S:
            return cls(contender, 1, max(1, round(seconds / call_s)), tries)
        call_s = float(np.median(contender.measure(math.ceil(TURN_S / call_s)).wall_s))
        calls = math.ceil(TURN_S / call_s)
        return cls(contender, calls, max(1, round(seconds / (calls * call_s))))

    @property
    def due(self) -> bool:
        """Whether another turn is needed. Disturbed turns are repeated, up to twice the wanted number."""
        done = len(undisturbed(self.taken)) if self.taken else 0
        return done < self.wanted and len(self.taken) < 2 * self.wanted


def take_turns(contenders: Mapping[str, Contender], seconds: float) -> dict[str, Timing | ProcessFailed]:
    """Time all contenders in turn, A B C A B C …, each for about `seconds`, one call at least.

    A contender that fails takes no further turns.
    """
    outcomes: dict[str, Timing | ProcessFailed] = {}
    turns: dict[str, _Turns] = {}
    for name, contender in contenders.items():
        try:
            turns[name] = _Turns.warmed_up(contender, seconds)
        except ProcessFailed as failure:
            outcomes[name] = failure
    while due := [name for name in turns if name not in outcomes and turns[name].due]:
        for name in due:
            try:
                turns[name].taken.append(contenders[name].measure(turns[name].calls))
            except ProcessFailed as failure:
                outcomes[name] = failure
    return {name: outcomes.get(name) or Timing.of(turns[name].taken) for name in contenders}
