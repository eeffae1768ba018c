"""Latency of several runtimes that take turns, so that a machine's drift hits all alike."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tasks.deployment.isolation import Samples, WorkerFailed

TURN_S = 0.01
"""A turn lasts about this long or a single call, whichever is longer."""
MIN_TURNS = 2
"""Of each runtime, however long they last."""
USUAL_QUANTILE = 0.75
"""Of the turns' cores at work: what a runtime has when nothing disturbs it, as at least every fourth turn."""
DISTURBED_BELOW = 0.8
"""Of that: a turn with fewer cores waited for something else."""


class Contender(Protocol):
    """A prepared network that can be timed; a :class:`~tasks.deployment.isolation.Worker`."""

    def measure(self, calls: int) -> Samples:
        """Time `calls` calls."""
        ...


@dataclass(frozen=True)
class Timing:
    """Times of one network by one runtime, in steady state."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    cpu_p50_ms: float
    """Of all threads. Less than `p50_ms` on one thread: something else ran on that core."""
    calls: int
    """Timed ones, without those of disturbed turns."""
    disturbed_turns: int
    peak_memory_bytes: int | None

    @classmethod
    def of(cls, turns: Sequence[Samples]) -> "Timing":
        """From the turns that nothing disturbed; percentiles are linear between the nearest two calls."""
        kept = undisturbed(turns)
        wall = 1e3 * np.concatenate([turn.wall_s for turn in kept])
        cpu = 1e3 * np.concatenate([turn.cpu_s for turn in kept])
        p50, p90, p99 = (float(value) for value in np.percentile(wall, [50, 90, 99]))
        peaks = [turn.peak_memory_bytes for turn in turns if turn.peak_memory_bytes is not None]
        return cls(
            p50, p90, p99, float(np.median(cpu)), len(wall), len(turns) - len(kept), max(peaks, default=None)
        )


def undisturbed(turns: Sequence[Samples]) -> list[Samples]:
    """Those whose share of the processor is the usual one; at least a quarter of them all.

    What the runtimes wait for is the processor alone, so one that gets less of it shared it with something
    else on the machine.
    """
    shares = [turn.cpu_per_wall for turn in turns]
    usual = np.quantile(shares, USUAL_QUANTILE)
    return [turn for turn, share in zip(turns, shares, strict=True) if share >= DISTURBED_BELOW * usual]


@dataclass
class _Turns:
    """What one contender has to do, and did."""

    contender: Contender
    calls: int
    """Number of calls in each turn."""
    wanted: int
    taken: list[Samples] = field(default_factory=list)

    @classmethod
    def warmed_up(cls, contender: Contender, seconds: float) -> "_Turns":
        """With turns of about `TURN_S`, as many as fill `seconds`."""
        tries = [contender.measure(1), contender.measure(1)]
        # The better of two: a hiccup in the first call mustn't make a network of microseconds a slow one.
        call_s = min(sum(samples.wall_s) for samples in tries)
        if call_s >= TURN_S:
            return cls(contender, 1, max(MIN_TURNS, round(seconds / call_s)), tries)
        call_s = float(np.median(contender.measure(math.ceil(TURN_S / call_s)).wall_s))
        calls = math.ceil(TURN_S / call_s)
        return cls(contender, calls, max(MIN_TURNS, round(seconds / (calls * call_s))))

    @property
    def due(self) -> bool:
        """Whether it needs another turn; disturbed ones are repeated, up to as many again as are wanted."""
        done = len(undisturbed(self.taken)) if self.taken else 0
        return done < self.wanted and len(self.taken) < 2 * self.wanted

    def take(self) -> None:
        self.taken.append(self.contender.measure(self.calls))


def take_turns(contenders: Mapping[str, Contender], seconds: float) -> dict[str, Timing | WorkerFailed]:
    """Time all contenders in turn, A B C A B C …, each for about `seconds`, `MIN_TURNS` turns at least.

    One that fails is left out of what follows.
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
