import contextlib

import pytest
import torch

from singleshot.rl.training.cuda_graph import WARM_UP, repeater


class Fakes:
    """CUDA as far as a capture needs it: what is recorded isn't done until it is replayed."""

    def __init__(self, monkeypatch):
        self.done, self.order, self.recorded, self.capturing = 0, [], 0, False
        monkeypatch.setattr("torch.cuda.Stream", lambda: self)
        monkeypatch.setattr("torch.cuda.current_stream", lambda: self)
        monkeypatch.setattr("torch.cuda.stream", lambda _: contextlib.nullcontext())
        monkeypatch.setattr("torch.cuda.CUDAGraph", lambda: self)
        monkeypatch.setattr("torch.cuda.graph", self.graph)

    def step(self):
        if self.capturing:
            self.recorded += 1
        else:
            self.done += 1

    def wait_stream(self, other):
        pass

    def register_generator_state(self, generator):
        self.order.append(generator)

    @contextlib.contextmanager
    def graph(self, graph, stream):
        self.order.append("capture")
        self.capturing = True
        yield
        self.capturing = False

    def replay(self):
        self.done += self.recorded


@pytest.mark.parametrize("times", [[1], [3], [4], [1, 1, 1, 1], [2, 5, 100], [0, 7]])
def test_each_step_is_made_once_whether_called_or_replayed(monkeypatch, times):
    cuda = Fakes(monkeypatch)
    run = repeater(cuda.step, ["generator"], "cuda")
    for i, count in enumerate(times):
        run(count)
        assert cuda.done == sum(times[: i + 1])
    # Captured once, with the generator known before, and only where there is something to replay.
    assert cuda.order == (["generator", "capture"] if sum(times) > WARM_UP else [])


def test_without_a_gpu_a_step_is_a_call():
    done = []
    repeater(lambda: done.append(1), [], "cpu")(4)
    assert len(done) == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_draws_of_replays_are_those_of_calls():
    called, replayed = (torch.Generator("cuda").manual_seed(5) for _ in range(2))
    sums = [torch.zeros(1000, device="cuda") for _ in range(2)]

    def step(generator, total):
        total.mul_(0.5).add_(torch.randn(1000, generator=generator, device="cuda"))

    for _ in range(12):
        step(called, sums[0])
    run = repeater(lambda: step(replayed, sums[1]), [replayed], "cuda")
    for count in (2, 6, 4):
        run(count)
    assert torch.equal(*sums)
    assert torch.equal(called.get_state(), replayed.get_state())

    replayed.set_state(called.manual_seed(9).get_state())  # a graph goes on from where its generator was put
    step(called, sums[0])
    run(1)
    assert torch.equal(*sums)
