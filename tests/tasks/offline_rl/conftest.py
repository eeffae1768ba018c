import numpy as np
import pytest

from tasks.offline_rl.data.transitions import Transitions
from tasks.offline_rl.environments import TASKS


@pytest.fixture(scope="session")
def transitions():
    """512 random transitions of Hopper's sizes, every tenth terminal."""
    task, rng, n = TASKS["Hopper"], np.random.default_rng(0), 512
    return Transitions.cast(
        rng.normal(size=(n, task.observation_size)),
        rng.uniform(-1, 1, size=(n, task.action_size)),
        rng.normal(size=n),
        rng.normal(size=(n, task.observation_size)),
        np.arange(n) % 10 == 9,
    )
