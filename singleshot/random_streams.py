"""Random streams: a separate generator for each purpose, seed and counter."""

import zlib
from typing import Literal

import numpy as np
import torch


def stream(*key: str | int, device: str = "cpu", bits: Literal[32, 64] = 32) -> torch.Generator:
    """The generator for a key: a purpose (`training`, `evaluation`, …), a seed, and counters, e.g. the step.

    Streams are independent if their keys differ and have equally many parts, with integers below 2³². Drawing
    more numbers from one then never changes another: evaluating an agent more often doesn't affect its
    training. A stream whose key includes the step needs no state in a checkpoint.

    `bits` is the width of the number that the key is hashed to. Photos and the training of styles use 64,
    everything else 32. Another width would give different random numbers, and so different networks from the
    same seeds.
    """
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    sequence = np.random.SeedSequence(words)
    (hashed,) = sequence.generate_state(1, np.uint32 if bits == 32 else np.uint64)
    return torch.Generator(device).manual_seed(int(hashed))
