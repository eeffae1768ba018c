"""A step that is repeated many times, on a GPU as one CUDA graph.

A BCQ update has some 250 kernels. For a small stack, each kernel takes less time than the CPU needs to launch
it. A graph launches all of them at once.
"""

import functools
from collections.abc import Callable, Iterable

import torch

WARM_UP = 3
"""Number of steps before the capture (PyTorch's own number for `make_graphed_callables`), in which libraries
create their handles and workspaces."""


def repeater(
    step: Callable[[], None], generators: Iterable[torch.Generator], device: str
) -> Callable[[int], None]:
    """A function that makes a given number of steps on `device`, with a captured graph if it is a GPU.

    `step` takes no arguments, returns nothing, and changes tensors in place. On CUDA, these tensors have to
    stay at their addresses from the first step on, no value may be read back from the device within a step,
    and the step may draw from no other generators than `generators`.
    """
    if torch.device(device).type == "cuda":
        return CapturedStep(step, generators).repeat
    return functools.partial(repeat, step)


def repeat(step: Callable[[], None], times: int) -> None:
    """Call `step` as many times as `times` says, without a graph."""
    for _ in range(times):
        step()


class CapturedStep:
    """A step on a GPU: its first calls are plain calls, then it is captured and replayed.

    Like plain calls, replays begin with the current state of the registered generators and advance them, so a
    generator's state between two calls of :meth:`repeat` is the same as without a graph.
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
        """Make plain calls on the stream of the capture, so that libraries allocate there what they need."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(times):
                self.step()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.warm_up_left -= times

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Record the step without computing it."""
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)  # PyTorch 2.14 will do so by itself
        with torch.cuda.graph(graph, stream=self.stream):
            self.step()
        return graph
