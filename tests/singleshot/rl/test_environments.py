import importlib
import json
import logging
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path

import gymnasium
import numpy as np
import onnx
import pytest
from small_graphs import write_bc
from small_networks import make_agent

from pipelines.config.params import configuration
from singleshot.errors import UserError
from singleshot.export.rollout import load_policy
from singleshot.rl.actions import ActionBounds
from singleshot.rl.agents import load_agent
from singleshot.rl.environments import (
    LOCOMOTION,
    Environment,
    Spaces,
    environment_in_file,
    known_spaces,
    make_environment,
)
from singleshot.rl.evaluation.episode import PlayedEpisode, load_episode


def test_known_scores_of_known_returns() -> None:
    for name, return_, score in (
        ("HalfCheetah", 12135.0, 100.0),
        ("HalfCheetah", -280.178953, 0.0),
        ("Hopper", 1000.0, 31.35),  # 1020.272305 / 3254.572305, by hand
        ("Walker2d", 1000.0, 21.75),  # 998.370992 / 4590.670992, by hand
        ("HalfCheetah", 11510.0, 95.0),  # tianshou's published BCQ, raw and on D4RL's scale
        ("HalfCheetah", 11355.0, 93.7),  # and its imitation learner
    ):
        assert LOCOMOTION[name].score(return_) == pytest.approx(score, abs=0.051)
    np.testing.assert_allclose(LOCOMOTION["Hopper"].score(np.array([-20.272305, 3234.3])), [0, 100])
    assert Environment("Hopper-v5").score(12.5) == 12.5  # without reference returns


@pytest.mark.parametrize("version", ["v5", "v4"])
@pytest.mark.parametrize(
    ("name", "observations", "actions"), [("HalfCheetah", 17, 6), ("Hopper", 11, 3), ("Walker2d", 17, 6)]
)
@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_locomotion_s_spaces(name: str, version: str, observations: int, actions: int) -> None:
    environment = replace(LOCOMOTION[name], id=f"{name}-{version}")
    assert known_spaces(environment) == Spaces(name, observations, ActionBounds.unit(actions), 1000)
    made = make_environment(environment)
    made.reset(seed=0)
    observation, *_ = made.step(np.zeros(actions, np.float32))
    assert observation.shape == (observations,)


def test_experts_environments_are_those_of_the_configuration() -> None:
    for name, environment in LOCOMOTION.items():
        assert configuration(f"environment={name}").offline_rl.environments == {name: environment}


def test_actions_are_scaled_to_the_environment_s_bounds() -> None:
    """InvertedPendulum takes forces within ±3."""
    own, scaled = gymnasium.make("InvertedPendulum-v5"), make_environment(Environment("InvertedPendulum-v5"))
    own.reset(seed=0), scaled.reset(seed=0)
    for force in (-3.0, 0.0, 1.5):
        expected, found = own.step(np.array([force])), scaled.step(np.array([force / 3], np.float32))
        np.testing.assert_allclose(found[0], expected[0], atol=1e-6)


def test_arguments_and_a_time_limit_are_passed_on() -> None:
    environment = Environment("Reacher-v5", {"reward_control_weight": 0.0}, time_limit=3)
    made = make_environment(environment)
    assert known_spaces(environment).time_limit == 3
    made.reset(seed=0)
    ends = [made.step(np.ones(2, np.float32))[3] for _ in range(3)]
    assert ends == [False, False, True]
    assert made.unwrapped._reward_control_weight == 0


def test_an_environment_that_agents_can_t_act_in_is_one_clear_error() -> None:
    for id_, named in (
        ("Hopper-v99", "Hopper-v99"),
        ("no.such.module:Robot-v0", "no.such.module:Robot-v0"),
        ("CartPole-v1", "Discrete(2)"),
        (None, "there is no environment"),
    ):
        with pytest.raises(UserError) as caught:
            make_environment(Environment(id_))
        assert named in str(caught.value)
        assert "\n" not in str(caught.value)


def in_agent(path, environment):
    replace(make_agent("bc", 0.0), environment=environment).save(path / "agent.safetensors")
    return load_agent(path).environment


def in_graph(path, environment):
    write_bc(path / "policy.onnx")
    graph = onnx.load(path / "policy.onnx")
    (card,) = (each for each in graph.metadata_props if "environment_spec" in each.value)
    card.value = json.dumps(json.loads(card.value) | {"environment_spec": asdict(environment)})
    onnx.save(graph, path / "policy.onnx")
    return load_policy(path / "policy.onnx").environment


def in_episode(path, environment):
    PlayedEpisode(environment, np.empty((0, 0)), np.zeros(1), 0.1, False).save(path / "episode.safetensors")
    return load_episode(path / "episode.safetensors").environment


READERS = pytest.mark.parametrize("read", [in_agent, in_graph, in_episode])


@READERS
@pytest.mark.parametrize(
    ("environment", "named"),
    [
        (Environment("from_a_file:Own-v0"), "from_a_file"),
        (Environment("Hopper-v5", {"xml_file": "robot.xml"}), "xml_file"),
        (Environment("Hopper-v5", {"frame_skip": 10**9}), "frame_skip"),
        (Environment("Hopper-v5", {"max_episode_steps": -1}), "max_episode_steps"),
    ],
)
def test_a_file_that_is_data_runs_no_code_and_names_no_other_file(
    read, environment, named, tmp_path, monkeypatch
):
    (tmp_path / "from_a_file.py").write_text("raise AssertionError('this code runs')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=named):
        make_environment(read(tmp_path, environment))
    assert "from_a_file" not in sys.modules


@pytest.mark.parametrize(
    "numbers",
    [
        {"time_limit": 10**15},
        {"kwargs": {"frame_skip": -5}},
        {"reference_returns": [5.0, 5.0]},
        {"reference_returns": [0.0, math.nan]},
    ],
)
def test_numbers_of_a_file_have_bounds(numbers):
    with pytest.raises(ValueError, match="frame_skip" if "kwargs" in numbers else next(iter(numbers))):
        environment_in_file({"id": "Hopper-v5", **numbers})
    with pytest.raises(UserError, match=r"bounds is \(\(1.0,\), \(-1.0,\)\); give"):
        ActionBounds((1.0,), (-1.0,))
    for low, high in ((-1e308, 1e308), (1e8, 1e8 + 1)):  # in float32, the second ones are one number
        with pytest.raises(UserError, match="bounds is"):
            ActionBounds((low,), (high,))


@READERS
def test_a_file_names_registered_environments(read, tmp_path):
    known = Environment("Hopper-v5", {"healthy_reward": 2.0}, time_limit=7)
    assert read(tmp_path, known) == known


def test_a_file_names_modules_that_the_user_has_imported(tmp_path, monkeypatch):
    (tmp_path / "imported_before.py").write_text(
        "import gymnasium\ngymnasium.register('Own-v0', 'gymnasium.envs.mujoco.hopper_v5:HopperEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    named = environment_in_file({"id": "imported_before:Own-v0"})
    with pytest.raises(UserError, match="imported_before"):
        make_environment(named)
    importlib.import_module("imported_before")
    assert known_spaces(named).observation_size == 11


def test_mujoco_writes_no_log_into_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.DEBUG):
        make_environment(LOCOMOTION["HalfCheetah"])
    assert "settotalmass" in caplog.text  # the warning that MuJoCo would have written there
    assert list(tmp_path.iterdir()) == []
