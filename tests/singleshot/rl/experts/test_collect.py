import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from singleshot.rl.data.transitions import Episode
from singleshot.rl.environments import LOCOMOTION, Environment, make_environment
from singleshot.rl.experts.collect import ACTION_GRID, LOCKSTEP, ExpertFunction, roll_out
from singleshot.rl.experts.policy import load_expert

ROOT = Path(__file__).parents[4]
EXPERTS = ROOT / "experts"
HOPPER, HALF_CHEETAH = LOCOMOTION["Hopper"], LOCOMOTION["HalfCheetah"]


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


def first(
    policy: ExpertFunction, environment: Environment, count: int, noise: float = 0.1, seed: int = 0
) -> list[Episode]:
    return list(itertools.islice(roll_out(policy, environment, noise, seed), count))


def test_an_episode_ends_at_a_fall_or_at_the_time_limit() -> None:
    falls = first(still, HOPPER, LOCKSTEP + 5)  # more than run at once
    assert all(episode.terminated and episode.complete for episode in falls)
    policy = lambda observations: np.zeros((len(observations), 6), np.float32)  # noqa: E731
    (whole,) = itertools.islice(roll_out(policy, HALF_CHEETAH, 0.1, 0, width=1), 1)
    assert (len(whole), whole.terminated, whole.complete) == (1000, False, True)


def test_a_seed_gives_its_data_again_and_another_one_does_not() -> None:
    runs = [first(leaning, HOPPER, 3, seed=seed) for seed in (3, 3, 4)]
    assert_equal(runs[0], runs[1])
    assert runs[0][0].observations[0].tolist() != runs[2][0].observations[0].tolist()


def test_how_many_run_in_lockstep_changes_nothing() -> None:
    """With an expert, whose batched products are exact."""
    policy = load_expert(EXPERTS / "hopper.safetensors").act
    alone = list(itertools.islice(roll_out(policy, HOPPER, 0.1, 0, width=1), 2))
    assert_equal(alone, first(policy, HOPPER, 2))


def test_an_episode_is_what_its_environment_does_with_its_actions() -> None:
    """Played again in a plain environment, from the recorded start."""
    (episode,) = first(leaning, HOPPER, 1)
    environment = make_environment(HOPPER)
    environment.reset(seed=int(np.random.default_rng([0, 0]).integers(2**31)))
    for i, action in enumerate(episode.actions):
        observation, reward, terminated, _, _ = environment.step(action)
        np.testing.assert_array_equal(observation, episode.observations[i + 1])
        assert reward == episode.rewards[i]
        assert terminated == (episode.terminated and i == len(episode) - 1)


def test_noise_is_gaussian_of_the_size_asked_for_and_clipped() -> None:
    (none,) = first(leaning, HOPPER, 1, noise=0.0)
    np.testing.assert_allclose(none.actions, leaning(none.observations[:-1]), atol=ACTION_GRID / 2, rtol=0)
    actions = np.concatenate([e.actions for e in first(still, HOPPER, 100)])
    assert len(actions) > 2000
    # Of 6,000 draws, the deviation of the mean is 0.0013 and that of the standard deviation 0.0009.
    assert abs(actions.mean()) < 0.006
    assert abs(actions.std() - 0.1) < 0.005
    assert abs((np.abs(actions) < 0.1).mean() - 0.6827) < 0.03
    wild = np.concatenate([e.actions for e in first(still, HOPPER, 20, noise=2.0)])
    assert np.abs(wild).max() == 1


def test_actions_are_multiples_of_the_grid() -> None:
    (episode,) = first(leaning, HOPPER, 1)
    steps = episode.actions.astype(np.float64) * 2**15
    np.testing.assert_array_equal(steps, np.rint(steps))


SCRIPT = """
import sys
from pathlib import Path
from singleshot.job import Job
from singleshot.rl.data.transitions import DataConfig
from singleshot.rl.environments import LOCOMOTION
from tasks.prepare_dataset import DatasetParams, prepare_dataset
environment, expert, output = sys.argv[1:]
params = DatasetParams(environment, LOCOMOTION[environment], DataConfig(transitions=3000, seed=0))
list(prepare_dataset([Job(params, {"expert": Path(expert)}, Path(output))]))
"""
LIMITS = {
    "all": {"OPENBLAS_NUM_THREADS": "2"},
    "less": {
        "OPENBLAS_NUM_THREADS": "1",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": " ".join(np.show_config(mode="dicts")["SIMD Extensions"]["found"]),
    },
}
"""What the libraries may use of the processor: all of it, and little of it, with another order of sums."""


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["HalfCheetah", "Walker2d"])
def test_the_processor_and_the_number_of_cores_change_nothing(tmp_path: Path, environment: str) -> None:
    """Whole episodes: a difference in a last bit grows until everything differs."""
    expert = EXPERTS / f"{environment.lower()}.safetensors"
    for name, limits in LIMITS.items():
        (tmp_path / name).mkdir()
        subprocess.run(
            [sys.executable, "-c", SCRIPT, environment, str(expert), str(tmp_path / name)],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | limits,
            check=True,
        )
    one, other = ((tmp_path / name / "transitions.safetensors").read_bytes() for name in LIMITS)
    assert one == other
