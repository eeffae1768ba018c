"""A step that is repeated many times, on a GPU as one CUDA graph.

An update of BCQ is some 250 kernels, for a small stack each shorter than the CPU takes to launch it. A graph
launches all of them at once.
"""

import functools
from collections.abc import Callable, Iterable

import torch

WARM_UP = 3
"""Steps before the capture (PyTorch's own number for `make_graphed_callables`): libraries make their handles
and workspaces, Adam its moments."""


def repeater(
    step: Callable[[], None], generators: Iterable[torch.Generator], device: str
) -> Callable[[int], None]:
    """What makes so many steps on `device`: captured where there is CUDA, else one call after another.

    `step` takes and returns nothing; it changes tensors in place. On CUDA these have to stay where they are
    from the first step on, no value may be read back from the device within a step, and `generators` are all
    that it draws from.
    """
    if torch.device(device).type == "cuda":
        return CapturedStep(step, generators).repeat
    return functools.partial(repeat, step)


def repeat(step: Callable[[], None], times: int) -> None:
    """One call after another."""
    for _ in range(times):
        step()


class CapturedStep:
    """A step on a GPU: its first calls are real ones, then it is captured and replayed.

    Replays advance the registered generators as calls do, and take them up where they are, so a generator's
    state between two calls of :meth:`repeat` is what it would be without a graph.
    """

    def __init__(self, step: Callable[[], None], generators: Iterable[torch.Generator]) -> None:
        self.step = step
        self.generators = list(generators)
        self.warm_up_left = WARM_UP
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None

    def repeat(self, times: int) -> None:
        """Make `times` steps; returns before the device has made them."""
        eager = min(times, self.warm_up_left)
        self._warm_up(eager)
        if eager == times:
            return
        self.graph = self.graph or self._capture()
        for _ in range(times - eager):
            self.graph.replay()

    def _warm_up(self, times: int) -> None:
        """On a stream of its own, as a capture is: what a library allocates per stream is there then."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(times):
                self.step()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.warm_up_left -= times

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Records the step; nothing of it is computed."""
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)  # PyTorch 2.14 will do so by itself
        with torch.cuda.graph(graph, stream=self.stream):
            self.step()
        return graph
