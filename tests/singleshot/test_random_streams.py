import zlib

import numpy as np
import torch

from singleshot.random_streams import stream
from singleshot.rl.data.replay import Randomness


def test_purposes_seeds_and_counters_are_streams_of_their_own():
    draws = [
        stream("training", 0),
        stream("evaluation", 0),
        stream("evaluation", 0, 5),
        stream("training", 1),
        stream(0, 0),
    ]
    assert len({torch.randn(1, generator=generator).item() for generator in draws}) == 5


def test_seeds_are_hashes_of_keys():
    key = [zlib.crc32(b"noise"), 3, 7]
    for bits, dtype in ((32, np.uint32), (64, np.uint64)):
        (expected,) = np.random.SeedSequence(key).generate_state(1, dtype)
        assert stream("noise", 3, 7, bits=bits).initial_seed() == int(expected)


def test_agents_of_a_seed_share_its_draws_whatever_else_is_in_the_stack():
    stack = Randomness("training", [3, 1, 3])
    normal, integers = stack.normal(4, 2), stack.integers(1000, 50)
    assert torch.equal(normal[0], normal[2])
    assert not torch.equal(normal[0], normal[1])
    for i, seed in enumerate([3, 1, 3]):
        alone = Randomness("training", [seed])
        assert torch.equal(alone.normal(4, 2)[0], normal[i])
        assert torch.equal(alone.integers(1000, 50)[0], integers[i])


def test_a_seed_goes_on_from_its_state():
    draws, other = Randomness("training", [0, 1]), Randomness("training", [0, 1])
    states = {seed: generator.get_state() for seed, generator in draws.generators.items()}
    expected = draws.normal(3)
    other.normal(100)
    for seed, state in states.items():
        other.restore(seed, state, 7)
    assert torch.equal(other.normal(3), expected)


def test_a_state_of_another_kind_of_device_begins_the_counters_stream():
    draws = Randomness("training", [0])
    generator = draws.generators[0]
    draws.restore(0, torch.zeros(16, dtype=torch.uint8), 7)
    assert draws.generators[0] is generator, "a CUDA graph knows it"
    assert torch.equal(draws.normal(3)[0], torch.randn(3, generator=stream("training", 0, 7)))
