"""Latency of several runtimes that take turns, so that a machine's drift affects all of them equally.

Imports only NumPy: a runtime's environment may lack everything else.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from singleshot.io.own_process import ProcessFailed

TURN_S = 0.01
"""Approximate duration of a turn in seconds; a turn with a single, longer call lasts as long as the call."""
LONG_S = 1.0
"""A first call of this many seconds or more isn't a hiccup, and isn't repeated to fill a shorter time."""
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


Measure = Callable[[int], Samples]
"""Times a number of calls of a prepared network, e.g. :meth:`singleshot.export.isolation.Worker.measure`."""


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
    shares = [sum(turn.cpu_s) / sum(turn.wall_s) for turn in turns]  # cores at work
    usual = np.quantile(shares, USUAL_QUANTILE)
    return [turn for turn, share in zip(turns, shares, strict=True) if share >= DISTURBED_BELOW * usual]


def take_turns(contenders: Mapping[str, Measure], seconds: float) -> dict[str, Timing | ProcessFailed]:
    """Time all contenders in turn, A B C A B C …, each for about `seconds`, one call at least.

    A contender that fails takes no further turns.
    """
    outcomes: dict[str, list[Samples] | ProcessFailed] = {}
    taking = {name: _turns(measure, seconds) for name, measure in contenders.items()}
    while taking:
        for name, turns in list(taking.items()):
            try:
                outcomes[name] = next(turns)
                continue
            except ProcessFailed as failure:
                outcomes[name] = failure
            except StopIteration:
                pass
            del taking[name]
    return {
        name: taken if isinstance(taken, ProcessFailed) else Timing.of(taken)
        for name, taken in outcomes.items()
    }


def _turns(measure: Measure, seconds: float) -> Iterator[list[Samples]]:
    """Warm up a contender, then let it take turns of about `TURN_S` until they fill `seconds`, one a step.

    Each step yields the turns up to then. Disturbed ones are repeated, up to twice the wanted number.
    """
    taken = [measure(1)]
    if sum(taken[0].wall_s) < max(seconds, LONG_S):
        taken.append(measure(1))
    # The faster of two calls, so that a hiccup in the first doesn't make a fast network seem slow.
    calls, call_s = 1, min(sum(samples.wall_s) for samples in taken)
    if call_s < TURN_S:
        taken = []
        call_s = float(np.median(measure(math.ceil(TURN_S / call_s)).wall_s))
        calls = math.ceil(TURN_S / call_s)
    yield taken
    wanted = max(1, round(seconds / (calls * call_s)))
    while len(taken) < 2 * wanted and (not taken or len(undisturbed(taken)) < wanted):
        taken.append(measure(calls))
        yield taken
