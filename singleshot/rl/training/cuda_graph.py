"""A step that is repeated many times, on a GPU as a CUDA graph.

A BCQ update has some 250 kernels. For a small stack, each kernel takes less time than the CPU needs to launch
it. A graph launches all of them at once.
"""

import functools
from collections.abc import Callable, Iterable

import torch

WARM_UP = 3
"""Number of steps before a capture (PyTorch's own number for `make_graphed_callables`), in which libraries
create their handles and workspaces."""


def repeater(
    step: Callable[[int], None], period: int, generators: Iterable[torch.Generator], device: str
) -> Callable[[range], None]:
    """A function that makes the steps of given numbers on `device`, with captured graphs if it is a GPU.

    `step` takes a step's number modulo `period`, on which alone its operations may depend, returns nothing,
    and changes tensors in place. On CUDA, these tensors have to stay at their addresses from their first step
    on, no value may be read back from the device within a step, and the step may draw from no other
    generators than `generators`.
    """
    if torch.device(device).type == "cuda":
        return CapturedStep(step, period, generators).repeat
    return functools.partial(repeat, step, period)


def repeat(step: Callable[[int], None], period: int, numbers: range) -> None:
    """Make the steps of these `numbers`, without a graph."""
    for number in numbers:
        step(number % period)


class CapturedStep:
    """A step on a GPU: its first calls are plain calls, then it is captured and replayed.

    Each number modulo the period has a graph. Like plain calls, replays begin with the current state of the
    registered generators and advance them, so a generator's state between two calls of :meth:`repeat` is the
    same as without a graph.
    """

    def __init__(
        self, step: Callable[[int], None], period: int, generators: Iterable[torch.Generator]
    ) -> None:
        self.step, self.period = step, period
        self.generators = list(generators)
        self.warm_up_left = WARM_UP * period
        self.stream = torch.cuda.Stream()
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def repeat(self, numbers: range) -> None:
        """Make the steps of these `numbers`; returns before the device has made them."""
        eager = min(len(numbers), self.warm_up_left)
        self._warm_up(numbers[:eager])
        for number in numbers[eager:]:
            phase = number % self.period
            if phase not in self.graphs:
                self.graphs[phase] = self._capture(phase)
            self.graphs[phase].replay()

    def _warm_up(self, numbers: range) -> None:
        """Make plain calls on the stream of the capture, so that libraries allocate there what they need."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            repeat(self.step, self.period, numbers)
        torch.cuda.current_stream().wait_stream(self.stream)
        self.warm_up_left -= len(numbers)

    def _capture(self, phase: int) -> torch.cuda.CUDAGraph:
        """Record the step without computing it."""
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)  # PyTorch 2.14 will do so by itself
        with torch.cuda.graph(graph, stream=self.stream):
            self.step(phase)
        return graph
