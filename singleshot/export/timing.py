"""Latency of several runtimes that take turns, so that a machine's drift affects all of them equally."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from singleshot.export.isolation import Samples, WorkerFailed

TURN_S = 0.01
"""Approximate duration of a turn in seconds; a turn with a single, longer call lasts as long as the call."""
MIN_TURNS = 2
"""Fewest turns of each runtime, however long they last."""
USUAL_QUANTILE = 0.75
"""Quantile of the turns' cores at work that counts as usual: at least every fourth turn is undisturbed."""
DISTURBED_BELOW = 0.8
"""Fraction of that quantile: a turn with fewer cores at work had to wait for something else."""


class Contender(Protocol):
    """A prepared network that can be timed, e.g. a :class:`~singleshot.export.isolation.Worker`."""

    def measure(self, calls: int) -> Samples:
        """Time `calls` calls."""
        ...


@dataclass(frozen=True)
class Timing:
    """Times of one network on one runtime, in steady state."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    cpu_p50_ms: float
    """Median processor time of a call, of all threads. If it is less than `p50_ms` on one thread, something
    else ran on that core."""
    calls: int
    """Number of timed calls, without those of disturbed turns."""
    disturbed_turns: int
    peak_memory_mb: float | None

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
        tries = [contender.measure(1), contender.measure(1)]
        # The faster of two calls, so that a hiccup in the first doesn't make a fast network seem slow.
        call_s = min(sum(samples.wall_s) for samples in tries)
        if call_s >= TURN_S:
            return cls(contender, 1, max(MIN_TURNS, round(seconds / call_s)), tries)
        call_s = float(np.median(contender.measure(math.ceil(TURN_S / call_s)).wall_s))
        calls = math.ceil(TURN_S / call_s)
        return cls(contender, calls, max(MIN_TURNS, round(seconds / (calls * call_s))))

    @property
    def due(self) -> bool:
        """Whether another turn is needed. Disturbed turns are repeated, up to twice the wanted number."""
        done = len(undisturbed(self.taken)) if self.taken else 0
        return done < self.wanted and len(self.taken) < 2 * self.wanted

    def take(self) -> None:
        self.taken.append(self.contender.measure(self.calls))


def take_turns(contenders: Mapping[str, Contender], seconds: float) -> dict[str, Timing | WorkerFailed]:
    """Time all contenders in turn, A B C A B C …, each for about `seconds`, `MIN_TURNS` turns at least.

    A contender that fails takes no further turns.
    """
    outcomes: dict[str, Timing | WorkerFailed] = {}
    turns: dict[str, _Turns] = {}
    for name, contender in contenders.items():
        try:
            turns[name] = _Turns.warmed_up(contender, seconds)
        except WorkerFailed as failure:
            outcomes[name] = failure
    while due := [name for name in turns if name not in outcomes and turns[name].due]:
        for name in due:
            try:
                turns[name].take()
            except WorkerFailed as failure:
                outcomes[name] = failure
    return {name: outcomes.get(name) or Timing.of(turns[name].taken) for name in contenders}
