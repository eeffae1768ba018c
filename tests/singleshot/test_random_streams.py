import zlib

import numpy as np
import torch

from singleshot.random_streams import stream


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
