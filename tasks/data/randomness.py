"""Random streams: a generator of its own for each purpose, seed and counter."""

import zlib
from typing import Literal

import numpy as np
import torch


def stream(*key: str | int, device: str = "cpu", bits: Literal[32, 64] = 32) -> torch.Generator:
    """The generator of a key: a purpose (`training`, `evaluation`, …), a seed, and counters such as the step.

    Streams of different keys are independent, so that drawing more numbers for one never moves another:
    evaluating an agent more often leaves its training as it was. Nothing of a stream that is keyed by the
    step has to be in a checkpoint.

    `bits` is the width of the number that the key is hashed to. Photos and the training of styles have 64,
    all else 32; other widths would be other random numbers, and so other networks from the same seeds.
    """
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    sequence = np.random.SeedSequence(words)
    (hashed,) = sequence.generate_state(1, np.uint32 if bits == 32 else np.uint64)
    return torch.Generator(device).manual_seed(int(hashed))
