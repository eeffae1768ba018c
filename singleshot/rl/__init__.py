"""Offline reinforcement learning: datasets, BC, BCQ, TD3+BC and IQL, pruning, training, evaluation, experts.

:mod:`singleshot.offline_rl` describes the names for scripts and notebooks, such as `singleshot.rl.BCQ`.
"""

import importlib
from typing import Any

NAMES = ("BC", "BCQ", "IQL", "TD3BC", "Agent", "Dataset")
"""What is imported from `singleshot.offline_rl` when it is first used; that module is above this package."""
__all__ = list(NAMES)


def __getattr__(name: str) -> Any:
    if name in NAMES:
        return getattr(importlib.import_module("singleshot.offline_rl"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *NAMES]
