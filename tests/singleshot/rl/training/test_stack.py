import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from singleshot.rl.agents import AgentSpec, initial_networks, layers_of, make_algorithm
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.rl.data.replay import ReplayBuffer
from singleshot.rl.randomness import Randomness
from singleshot.rl.training.learner import Learner
from singleshot.rl.training.stack import USABLE, bytes_per_agent, flushed_denormals, require_memory

AGENTS, EPISODES = 2, 10


def peak(work):
    """The most bytes that tensors take at a time while `work` runs, by PyTorch's own records."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize("config", [BCConfig(), BCQConfig(target_samples=2)])
def test_what_an_agent_takes_is_what_pytorch_counts_on_a_cpu(config, transitions):
    name = "bcq" if isinstance(config, BCQConfig) else "bc"
    algorithm = make_algorithm(AgentSpec("Hopper", name, "dense", 0.0, 0), config, 11, 3)
    seeds = range(AGENTS)
    data, randomness = ReplayBuffer(transitions), Randomness("training", seeds)
    networks = initial_networks(algorithm, seeds)
    masks = {
        name: {
            layer: torch.ones(AGENTS, *size, dtype=torch.bool).bernoulli_(0.5)
            for layer, size in layers.items()
        }
        for name, layers in layers_of(algorithm).items()
    }

    states = data.sample(randomness, EPISODES).state

    def train():
        learner = Learner(networks, algorithm, masks)
        for _ in range(2):  # the second update has the gradients of the first beside it
            learner.update(data.sample(randomness, config.batch_size), randomness)

    def act():
        noise = randomness.normal(EPISODES, *algorithm.noise_shape)
        algorithm.act(networks, states, noise)

    measured = (peak(train) + peak(act)) / AGENTS
    assert measured < bytes_per_agent(algorithm, EPISODES) < 1.4 * measured


def test_a_stack_that_a_gpu_has_no_room_for_is_refused_beforehand(monkeypatch):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (2**30, 2**34))
    room = int(USABLE * 2**30)
    require_memory(10, room // 10 - 1, "cuda")
    require_memory(1000, room, "cpu")
    with pytest.raises(torch.OutOfMemoryError, match=r"10 agents take about 0\.90 GiB.* 1\.00 GiB free"):
        require_memory(10, room // 10 + 1, "cuda")


@pytest.mark.parametrize("before", [False, True])
def test_denormals_are_treated_as_before_again(before):
    torch.set_flush_denormal(before)
    try:
        with flushed_denormals():
            assert torch.tensor(1e-39).mul(1) == 0
        assert (torch.tensor(1e-39).mul(1) == 0) == before
    finally:
        torch.set_flush_denormal(False)
