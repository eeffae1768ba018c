import contextlib

import pytest
import torch

from singleshot.rl.training.stack import WARM_UP, repeater


class Fakes:
    """CUDA as far as a capture needs it: what is recorded isn't done until it is replayed."""

    def __init__(self, monkeypatch):
        self.done, self.order, self.capturing = [], [], None
        monkeypatch.setattr("torch.cuda.Stream", lambda: self)
        monkeypatch.setattr("torch.cuda.current_stream", lambda: self)
        monkeypatch.setattr("torch.cuda.stream", lambda _: contextlib.nullcontext())
        monkeypatch.setattr("torch.cuda.CUDAGraph", lambda: FakeGraph(self))
        monkeypatch.setattr("torch.cuda.graph", self.graph)

    def step(self, phase):
        (self.done if self.capturing is None else self.capturing.recorded).append(phase)

    def wait_stream(self, other):
        pass

    @contextlib.contextmanager
    def graph(self, graph, stream):
        self.order.append("capture")
        self.capturing = graph
        yield
        self.capturing = None


class FakeGraph:
    def __init__(self, cuda):
        self.cuda, self.recorded = cuda, []

    def register_generator_state(self, generator):
        self.cuda.order.append(generator)

    def replay(self):
        self.cuda.done += self.recorded


@pytest.mark.parametrize("times", [[1], [3], [4], [1, 1, 1, 1], [2, 5, 100], [0, 7]])
@pytest.mark.parametrize("period", [1, 2, 3])
def test_each_step_is_made_once_whether_called_or_replayed(monkeypatch, times, period):
    cuda = Fakes(monkeypatch)
    run = repeater(cuda.step, period, ["generator"], "cuda")
    last = 0
    for count in times:
        run(range(last + 1, last + count + 1))
        last += count
        assert cuda.done == [number % period for number in range(1, last + 1)]
    # Captured once for each phase, with the generator known before, only where there is something to replay.
    graphs = min(period, max(0, last - WARM_UP * period))
    assert cuda.order == ["generator", "capture"] * graphs


def test_without_a_gpu_a_step_is_a_call():
    done = []
    repeater(done.append, 3, [], "cpu")(range(5, 9))
    assert done == [2, 0, 1, 2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_draws_of_replays_are_those_of_calls():
    called, replayed = (torch.Generator("cuda").manual_seed(5) for _ in range(2))
    sums = [torch.zeros(1000, device="cuda") for _ in range(2)]

    def step(generator, total):
        total.mul_(0.5).add_(torch.randn(1000, generator=generator, device="cuda"))

    for _ in range(12):
        step(called, sums[0])
    run = repeater(lambda _: step(replayed, sums[1]), 1, [replayed], "cuda")
    for count in (2, 6, 4):
        run(range(count))
    assert torch.equal(*sums)
    assert torch.equal(called.get_state(), replayed.get_state())

    replayed.set_state(called.manual_seed(9).get_state())  # a graph goes on from where its generator was put
    step(called, sums[0])
    run(range(1))
    assert torch.equal(*sums)
