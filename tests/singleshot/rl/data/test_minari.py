"""Datasets written by Minari itself, whole and damaged, and fetched from a remote that is a directory."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer

from singleshot.errors import UserError
from singleshot.rl.data.minari import fetch_minari, local_minari, read_minari, write_minari
from singleshot.rl.data.transitions import Episode
from singleshot.rl.environments import LOCOMOTION, Environment, make_environment

HOPPER = LOCOMOTION["Hopper"]
DATASET = "mujoco/hopper/tiny-v0"
NORMALIZED = {
    "name": "NormalizeReward",
    "entry_point": "gymnasium.wrappers.stateful_reward:NormalizeReward",
    "kwargs": {"gamma": 0.99},
}
"""How Gymnasium writes down a wrapper."""


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two episodes made with Minari's own functions, of 2 steps to a terminal and 3 to a truncation."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    buffers = [
        EpisodeBuffer(
            observations=list(first + np.arange(steps + 1)[:, None] * np.ones(11)),
            actions=list(np.full((steps, 3), 0.5, np.float32)),
            rewards=[1.0] * steps,
            terminations=[False] * (steps - 1) + [terminated],
            truncations=[False] * (steps - 1) + [not terminated],
        )
        for first, steps, terminated in ((0, 2, True), (100, 3, False))
    ]
    environment = make_environment(HOPPER)
    words = dict.fromkeys(("algorithm_name", "author", "author_email", "code_permalink", "description"), "")
    minari.create_dataset_from_buffers(DATASET, buffers, env=environment, eval_env=environment, **words)
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    return tmp_path / DATASET


@pytest.mark.parametrize("inner", ["", "data"])
def test_reads_what_minari_wrote(dataset: Path, inner: str):
    loaded = read_minari(dataset / inner, HOPPER)
    transitions = loaded.transitions
    assert transitions.observations[:, 0].tolist() == [0, 1, 100, 101, 102]
    assert transitions.next_observations[:, 0].tolist() == [1, 2, 101, 102, 103]
    assert transitions.terminals.tolist() == [False, True, False, False, False]
    assert (transitions.actions == 0.5).all()
    assert loaded.episodes == 2
    assert loaded.returns.tolist() == [2]  # the other ended before its time limit without a terminal


def test_minari_reads_what_we_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    random = np.random.default_rng(0)
    written = [
        Episode(random.normal(size=(n + 1, 11)), random.uniform(-1, 1, (n, 3)), random.normal(size=n), n == 4)
        for n in (4, 7)
    ]
    write_minari(written, tmp_path, "hopper-expert-v0", HOPPER, "TD3")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    loaded = minari.load_dataset("hopper-expert-v0")
    assert (loaded.total_episodes, loaded.total_steps) == (2, 11)
    assert loaded.recover_environment().spec.id == "Hopper-v5"
    for ours, theirs in zip(written, loaded, strict=True):
        np.testing.assert_array_equal(theirs.observations, ours.observations)
        np.testing.assert_array_equal(theirs.actions, ours.actions)
        np.testing.assert_array_equal(theirs.rewards, ours.rewards)
        ends = np.arange(len(ours)) == len(ours) - 1
        np.testing.assert_array_equal(theirs.terminations, ends & ours.terminated)
        np.testing.assert_array_equal(theirs.truncations, ends & (not ours.terminated))


def rewrite(file: h5py.File, key: str, values: np.ndarray | None):
    del file[key]
    if values is not None:
        file[key] = values


def refused(path: Path, named: str, environment: Environment | None = HOPPER):
    """In one line. The error isn't held, or the file would stay open."""
    with pytest.raises(UserError, match=rf"^.*{path.name}.*{re.escape(named)}.*\Z"):
        read_minari(path, environment)


def test_flags_may_be_numbers(dataset: Path):
    expected = read_minari(dataset, HOPPER)
    for kind in (np.float32, np.float64, np.int8):
        with h5py.File(dataset / "data/main_data.hdf5", "a") as file:
            for key in ("episode_0/terminations", "episode_0/truncations", "episode_1/truncations"):
                rewrite(file, key, file[key][()].astype(kind))
        loaded = read_minari(dataset, HOPPER)
        assert loaded.transitions.terminals.tolist() == expected.transitions.terminals.tolist()
        assert loaded.returns.tolist() == expected.returns.tolist()


def test_without_an_environment_single_numbers_are_vectors_but_choices_are_not(dataset: Path):
    with h5py.File(dataset / "data/main_data.hdf5", "a") as file:
        for name in ("episode_0", "episode_1"):
            rewrite(file, f"{name}/actions", file[f"{name}/actions"][:, 0])
    assert read_minari(dataset).transitions.actions.tolist() == [[0.5]] * 5
    for values in (np.arange(3), np.zeros((3, 4, 4), np.uint8)):
        with h5py.File(dataset / "data/main_data.hdf5", "a") as file:
            rewrite(file, "episode_0/observations", values)
        refused(dataset, f"episode 0: 'observations' is {values.dtype} of shape {values.shape}", None)


def about(dataset: Path, **changed: Any):
    """Change what the metadata say, or leave it out where it is None."""
    path = dataset / "data/metadata.json"
    metadata = json.loads(path.read_text()) | changed
    path.write_text(json.dumps({name: value for name, value in metadata.items() if value is not None}))


def environment(dataset: Path, **changed: Any):
    spec = json.loads(json.loads((dataset / "data/metadata.json").read_text())["env_spec"])
    about(dataset, env_spec=json.dumps(spec | changed))


def test_metadata_import_no_module(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Minari makes the environment by its entry point if metadata lack spaces."""
    (tmp_path / "from_metadata.py").write_text("raise AssertionError('this code runs')")
    monkeypatch.syspath_prepend(tmp_path)
    environment(dataset, entry_point="from_metadata:Own")
    assert len(read_minari(dataset, HOPPER).transitions) == 5
    about(dataset, observation_space=None)
    with pytest.raises(UserError, match="spaces"):
        read_minari(dataset, HOPPER)


def test_episodes_without_their_last_observation_lose_a_step_unless_it_is_terminal(dataset: Path):
    with h5py.File(dataset / "data/main_data.hdf5", "a") as file:
        for name, steps in (("episode_0", 2), ("episode_1", 3)):
            rewrite(file, f"{name}/observations", file[f"{name}/observations"][:steps])
            rewrite(file, f"{name}/rewards", np.ones((steps, 1)))
    loaded = read_minari(dataset, HOPPER)
    assert loaded.transitions.observations[:, 0].tolist() == [0, 1, 100, 101]
    assert loaded.transitions.next_observations[:, 0].tolist() == [1, 1, 101, 102]
    assert loaded.transitions.terminals.tolist() == [False, True, False, False]
    assert len(loaded.doubts) == 1


def test_a_terminal_at_the_time_limit_is_a_time_out(tmp_path: Path):
    random = np.random.default_rng(0)
    full = Episode(random.normal(size=(1001, 11)), np.zeros((1000, 3)), np.ones(1000), True)
    write_minari([full], tmp_path, "full-v0", HOPPER, "none")
    loaded = read_minari(tmp_path / "full-v0", HOPPER)
    assert not loaded.transitions.terminals.any()
    assert loaded.returns.tolist() == [1000]
    assert loaded.doubts == ("a terminal stands at the time limit, read as a time-out",)


def test_damage_is_one_clear_error(dataset: Path, tmp_path: Path):
    data, metadata = dataset / "data/main_data.hdf5", dataset / "data/metadata.json"
    whole = {path: path.read_bytes() for path in (data, metadata)}

    def told(named: str, path: Path = dataset, environment: Environment = HOPPER):
        refused(path, named, environment)
        for file, content in whole.items():
            file.write_bytes(content)

    for named, key, values in (
        ("'rewards'", "episode_1/rewards", None),
        ("2 episodes, its data 1", "episode_1", None),
        ("rows of any length", "episode_1/rewards", np.array(["1", "2", "3"], h5py.string_dtype())),
        ("episode 1: 'observations' holds nan", "episode_1/observations", np.full((4, 11), np.nan)),
        ("'actions' reach 3", "episode_0/actions", np.full((2, 3), 3.0)),
        ("episode 0: 'observations' has shape (3, 17)", "episode_0/observations", np.zeros((3, 17))),
        ("episode 1: continues", "episode_1/terminations", np.array([1, 0, 0])),
    ):
        with h5py.File(data, "a") as file:
            rewrite(file, key, values)
        told(named)
    for path, content in whole.items():
        path.write_bytes(content[: len(content) // 2])
        told("Minari can't read it")
    about(dataset, minari_version="9.1")
    told("9.1")
    environment(dataset, id="Walker2d-v5")
    told("Walker2d-v5")
    with h5py.File(data, "a") as file:
        rewrite(file, "episode_0/rewards", None)
        file["episode_0"].create_dataset("rewards", (2,), "f8", external=[(str(metadata), 0, 16)])
    told("episode_0/rewards' is in another file")
    about(dataset, total_episodes=1)  # the second would be left out in silence
    told("1 episodes, its data 2")
    about(dataset, data_format="arrow")  # Minari cuts long episodes of it
    told("data_format is 'arrow'")
    about(dataset, observation_space='{"type": "Box", "dtype": "uint8", "shape": [32, 32]}')
    told("agents take vectors")  # Minari would open each row as a picture of any format
    about(
        dataset, action_space='{"type": "Box", "dtype": "S1000000000", "shape": [3], "low": [0], "high": [1]}'
    )
    told("agents take vectors")  # Minari would fill bounds of gigabytes
    told("no Minari dataset", dataset.parent)


def test_doubtful_datasets_are_used_and_one_line_says_so(dataset: Path, caplog: pytest.LogCaptureFixture):
    for change, named in (
        ({"kwargs": {"reset": 0}}, "reset"),
        ({"id": "Hopper-v4"}, "Hopper-v4"),
        ({"id": "Hopper-v5", "kwargs": {}, "additional_wrappers": [NORMALIZED]}, "through NormalizeReward"),
        ({"additional_wrappers": [], "max_episode_steps": 10}, "after 10 steps"),
        (None, "guess"),
    ):
        caplog.clear()
        if change:
            environment(dataset, **change)
        else:
            about(dataset, env_spec=None)
        loaded = read_minari(dataset, HOPPER)
        assert len(loaded.transitions) == 5
        (told,) = loaded.doubts
        assert named in told
        assert [record.getMessage() for record in caplog.records] == [f"{dataset}: used, though {told}"]


def test_ids_are_looked_up_where_minari_keeps_its_datasets_and_fetched_to_a_directory(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def download(name: str):
        if name != DATASET:
            raise ConnectionError("unplugged")
        shutil.copytree(dataset, Path(os.environ["MINARI_DATASETS_PATH"]) / name)

    monkeypatch.setattr(minari, "download_dataset", download)
    monkeypatch.delenv("MINARI_DATASETS_PATH", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert local_minari(DATASET) is None
    fetched = fetch_minari(DATASET, tmp_path / "fetched")
    assert len(read_minari(fetched, HOPPER).transitions) == 5
    assert not (tmp_path / "home").exists()
    with pytest.raises(UserError, match=r"other-v0.*ConnectionError: unplugged"):
        fetch_minari("mujoco/hopper/other-v0", tmp_path / "fetched")
    shutil.copytree(dataset, kept := tmp_path / "home/.minari/datasets" / DATASET)
    assert local_minari(DATASET) == kept
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert local_minari(DATASET) == dataset
