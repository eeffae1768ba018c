import numpy as np
import pytest
import torch

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


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
