"""Each environment of conf/environment: from data to masks, an agent, its graph, and episodes with that."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from pipelines.config.params import configuration
from singleshot.export.rollout import load_policy, play_onnx
from singleshot.job import Job
from singleshot.pruning.masks import PruningConfig
from singleshot.rl.agents import AgentSpec
from singleshot.rl.algorithms.td3bc import TD3BCConfig
from singleshot.rl.data.transitions import D4RLFile, DataConfig
from singleshot.rl.environments import known_spaces, make_environment
from singleshot.rl.evaluation.play import EvaluationConfig
from tasks.export import ExportParams, export_policy
from tasks.prepare_dataset import DatasetParams, prepare_dataset
from tasks.prune_agent import PruneParams, prune_agent
from tasks.train_agents import TrainingConfig, TrainParams, train

NAMES = sorted(path.stem for path in (Path(__file__).parents[2] / "conf/environment").glob("*.yaml"))
BOUNDS = {"Humanoid": 0.4, "InvertedPendulum": 3.0, "Pusher": 2.0}
"""Largest action, where it isn't 1 (Gymnasium's documentation)."""


def record(environment, path):
    """A file in D4RL's format of random actions within the environment's own bounds."""
    made, bounds, rows = make_environment(environment), known_spaces(environment).bounds, []
    made.action_space.seed(0)
    state, _ = made.reset(seed=0)
    for _ in range(200):
        action = made.action_space.sample()
        after, reward, terminal, timeout, _ = made.step(action)
        rows.append((state, bounds.from_unit(action), reward, terminal, timeout))
        state = made.reset()[0] if terminal or timeout else after
    with h5py.File(path, "w") as file:
        names = ("observations", "actions", "rewards", "terminals", "timeouts")
        for name, values in zip(names, zip(*rows, strict=True), strict=True):
            file[name] = np.array(values)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_agent_is_pruned_trained_exported_and_played(name, tmp_path):
    environment = configuration(f"environment={name}").offline_rl.environments[name]
    environment = replace(environment, time_limit=20)
    record(environment, tmp_path / "data.hdf5")
    data = DataConfig(source="d4rl", d4rl={name: D4RLFile("data.hdf5")})
    spec, config = AgentSpec(name, "td3bc", "snip", 0.9, 0), TD3BCConfig(batch_size=20)
    steps = [
        (prepare_dataset, DatasetParams(name, environment, data), {"d4rl": tmp_path / "data.hdf5"}),
        (prune_agent, PruneParams(spec, config, PruningConfig()), {"dataset": "transitions.safetensors"}),
        (
            train,
            TrainParams(spec, environment, config, TrainingConfig(5, 5, 5), EvaluationConfig(1)),
            {"dataset": "transitions.safetensors", "masks": "masks.safetensors"},
        ),
        (
            export_policy,
            ExportParams(name, opset=18),
            {"source": "agent.safetensors", "scores": "scores.csv"},
        ),
    ]
    for task, params, inputs in steps:
        list(task([Job(params, {key: tmp_path / path for key, path in inputs.items()}, tmp_path)]))

    graph = tmp_path / f"{name.lower()}-compacted.onnx"
    assert np.isfinite(play_onnx(graph, episodes=1)).all()
    states = 100 * np.random.default_rng(0).standard_normal((50, known_spaces(environment).observation_size))
    largest = np.abs(load_policy(graph).model(state=states.astype(np.float32))["action"]).max()
    assert largest == pytest.approx(BOUNDS.get(name, 1.0), rel=0.02)
