"""Offline reinforcement learning: datasets, BC, BCQ, TD3+BC and IQL, pruning, training, evaluation, experts.

:mod:`singleshot.rl.scripts` has the names for scripts and notebooks, such as `singleshot.rl.BCQ`.
"""

import importlib
from typing import Any

NAMES = ("BC", "BCQ", "IQL", "TD3BC", "Agent", "Dataset", "TrainableAgent")
"""What is imported from `scripts` when it is first used: PyTorch alone takes two seconds."""
__all__ = list(NAMES)


def __getattr__(name: str) -> Any:
    if name in NAMES:
        return getattr(importlib.import_module("singleshot.rl.scripts"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *NAMES]
