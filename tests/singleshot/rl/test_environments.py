import logging
from pathlib import Path

import numpy as np
import pytest

from singleshot.errors import UserError
from singleshot.rl.environments import TASKS, TIME_LIMIT, d4rl_score, make_environment


@pytest.mark.parametrize(
    ("task", "return_", "score"),
    [
        ("HalfCheetah", 12135.0, 100.0),
        ("HalfCheetah", -280.178953, 0.0),
        ("HalfCheetah", 5927.4105235, 50.0),  # the mean of 12135 and -280.178953
        ("Hopper", 3234.3, 100.0),
        ("Hopper", 1000.0, 31.35),  # 1020.272305 / 3254.572305, by hand
        ("Walker2d", 4592.3, 100.0),
        ("Walker2d", 1.629008, 0.0),
        ("Walker2d", 1000.0, 21.75),  # 998.370992 / 4590.670992, by hand
        ("HalfCheetah", 11510.0, 95.0),  # tianshou's published BCQ, raw and on D4RL's scale
        ("HalfCheetah", 11355.0, 93.7),  # and its imitation learner
    ],
)
def test_known_scores_of_known_returns(task: str, return_: float, score: float) -> None:
    assert d4rl_score(TASKS[task], return_) == pytest.approx(score, abs=0.051)


def test_scores_of_many_returns_at_once() -> None:
    np.testing.assert_allclose(d4rl_score(TASKS["Hopper"], np.array([-20.272305, 3234.3])), [0, 100])


@pytest.mark.parametrize("version", ["v5", "v4"])
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_environments_have_the_sizes_limits_and_actions_of_their_task(name: str, version: str) -> None:
    task = TASKS[name]
    environment = make_environment(task, version)
    assert environment.spec.id == f"{name}-{version}"
    assert environment.spec.max_episode_steps == TIME_LIMIT
    assert environment.observation_space.shape == (task.observation_size,)
    assert environment.action_space.shape == (task.action_size,)
    assert (environment.action_space.low == -1).all()
    assert (environment.action_space.high == 1).all()
    environment.reset(seed=0)
    observation, *_ = environment.step(np.zeros(task.action_size, np.float32))
    assert observation.shape == (task.observation_size,)


def test_an_unknown_version_is_one_clear_error() -> None:
    with pytest.raises(UserError, match=r"Hopper-v99 can't be made .* Use env_version v5"):
        make_environment(TASKS["Hopper"], "v99")


def test_mujoco_writes_no_log_into_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.DEBUG):
        make_environment(TASKS["HalfCheetah"])
    assert "settotalmass" in caplog.text  # the warning that MuJoCo would have written there
    assert list(tmp_path.iterdir()) == []
