import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from singleshot.rl.data.transitions import Episode
from singleshot.rl.environments import TASKS, TIME_LIMIT, make_environment
from singleshot.rl.experts import collect as module
from singleshot.rl.experts.collect import collect

HOPPER, HALF_CHEETAH = TASKS["Hopper"], TASKS["HalfCheetah"]


def still(observations: np.ndarray) -> np.ndarray:
    """Hopper falls over under it, after some tens of steps."""
    return np.zeros((len(observations), 3), np.float32)


def leaning(observations: np.ndarray) -> np.ndarray:
    """Depends on what it sees, so that an observation given to the wrong environment would show."""
    return np.tanh(observations[:, :3])


def assert_equal(a: list[Episode], b: list[Episode]) -> None:
    assert [len(e) for e in a] == [len(e) for e in b]
    for left, right in zip(a, b, strict=True):
        np.testing.assert_array_equal(left.observations, right.observations)
        np.testing.assert_array_equal(left.actions, right.actions)
        np.testing.assert_array_equal(left.rewards, right.rewards)
        assert left.terminated == right.terminated


def test_as_many_transitions_as_asked_for_the_last_episode_cut() -> None:
    episodes = list(collect(still, HOPPER, "v5", 2345, 0.1, seed=0))
    assert sum(len(episode) for episode in episodes) == 2345
    assert len(episodes) > 20  # more than run at once
    assert all(episode.terminated for episode in episodes[:-1])
    assert not episodes[-1].terminated
    assert not episodes[-1].complete


def test_an_episode_that_reaches_the_time_limit_is_complete_and_not_terminal() -> None:
    policy = lambda observations: np.zeros((len(observations), 6), np.float32)  # noqa: E731
    first, second = collect(policy, HALF_CHEETAH, "v5", TIME_LIMIT + 1, 0.1, seed=0)
    assert (len(first), first.terminated, first.complete) == (TIME_LIMIT, False, True)
    assert (len(second), second.terminated, second.complete) == (1, False, False)


def test_a_seed_gives_its_data_again_and_another_one_does_not() -> None:
    runs = [list(collect(leaning, HOPPER, "v5", 500, 0.1, seed)) for seed in (3, 3, 4)]
    assert_equal(runs[0], runs[1])
    assert runs[0][0].observations[0].tolist() != runs[2][0].observations[0].tolist()


def test_how_many_run_in_lockstep_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`leaning` works row by row: no matrix product whose rounding depends on the size of its batch."""
    together = list(collect(leaning, HOPPER, "v5", 2500, 0.1, seed=0))
    monkeypatch.setattr(module, "LOCKSTEP", 1)
    assert_equal(together, list(collect(leaning, HOPPER, "v5", 2500, 0.1, seed=0)))


def test_an_episode_is_what_its_environment_does_with_its_actions() -> None:
    """Played again in a plain environment, from the recorded start."""
    episode = next(collect(leaning, HOPPER, "v5", 100, 0.1, seed=0))
    environment = make_environment(HOPPER)
    environment.reset(seed=int(np.random.default_rng([0, 0]).integers(2**31)))
    for i, action in enumerate(episode.actions):
        observation, reward, terminated, _, _ = environment.step(action)
        np.testing.assert_array_equal(observation, episode.observations[i + 1])
        assert reward == episode.rewards[i]
        assert terminated == (episode.terminated and i == len(episode) - 1)


def test_noise_is_gaussian_of_the_size_asked_for_and_clipped() -> None:
    none = list(collect(leaning, HOPPER, "v5", 200, 0.0, seed=0))
    np.testing.assert_array_equal(none[0].actions, leaning(none[0].observations[:-1]).astype(np.float32))
    actions = np.concatenate([e.actions for e in collect(still, HOPPER, "v5", 5000, 0.1, seed=0)])
    # Of 15,000 draws, the deviation of the mean is 0.0008 and that of the standard deviation 0.0006.
    assert abs(actions.mean()) < 0.004
    assert abs(actions.std() - 0.1) < 0.003
    assert abs((np.abs(actions) < 0.1).mean() - 0.6827) < 0.02
    wild = np.concatenate([e.actions for e in collect(still, HOPPER, "v5", 500, 2.0, seed=0)])
    assert np.abs(wild).max() == 1


SCRIPT = """
import hashlib, numpy as np
from singleshot.rl.experts.collect import collect
from singleshot.rl.environments import TASKS
random = np.random.default_rng(0)
layers = [random.normal(size=shape).astype(np.float32) / 8 for shape in ((17, 750), (750, 750), (750, 6))]
def policy(x):
    for layer in layers: x = np.tanh(x.astype(np.float32) @ layer)
    return x
digest = hashlib.sha256()
for episode in collect(policy, TASKS["HalfCheetah"], "v5", 2000, 0.1, 0):
    digest.update(episode.observations.tobytes() + episode.actions.tobytes())
print(digest.hexdigest())
"""


def test_the_number_of_cores_changes_nothing() -> None:
    """Layers of 750, whose products OpenBLAS rounds otherwise on two threads than on one."""
    root = Path(__file__).parents[4]
    digests = set()
    for threads in ("1", "2"):
        environment = {"PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(run.stdout)
    assert len(digests) == 1
