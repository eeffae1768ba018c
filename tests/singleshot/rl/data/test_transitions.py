from dataclasses import replace
from pathlib import Path

import numpy as np
import pydantic
import pytest
import safetensors.numpy

from singleshot.errors import UserError
from singleshot.rl.actions import ActionBounds
from singleshot.rl.data.transitions import D4RLFile, DataConfig, Episode, Transitions, from_episodes
from singleshot.rl.environments import LOCOMOTION, known_spaces

SPACES = known_spaces(LOCOMOTION["Hopper"])


def hopper_transitions(n: int = 5) -> Transitions:
    random = np.random.default_rng(0)
    return Transitions.cast(
        random.normal(size=(n, 11)),
        random.uniform(-1, 1, (n, 3)),
        random.normal(size=n),
        random.normal(size=(n, 11)),
        np.arange(n) == n - 1,
    )


def test_what_is_saved_is_loaded_and_equal_transitions_are_equal_bytes(tmp_path: Path) -> None:
    saved = replace(hopper_transitions(), bounds=ActionBounds((-1.0, 0.0, 0.0), (1.0, 1.0, 5.0)))
    for name in "ab":
        saved.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    loaded = Transitions.load(tmp_path / "a")
    for name in ("observations", "actions", "rewards", "next_observations", "terminals"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(saved, name))
        assert getattr(loaded, name).dtype == (bool if name == "terminals" else np.float32)
    assert (len(loaded), loaded.bounds) == (5, saved.bounds)


SOUND = hopper_transitions()
BROKEN = {
    "no transition": hopper_transitions(0),
    "'observations' has shape (5, 17), Hopper": replace(SOUND, observations=np.zeros((5, 17), np.float32)),
    "'actions' has shape (5,)": replace(SOUND, actions=np.zeros(5, np.float32)),
    "'terminals' has shape (4,)": replace(SOUND, terminals=np.zeros(4, bool)),
    "'rewards' holds nan at (2,)": replace(SOUND, rewards=np.float32([0, 0, np.nan, 0, np.nan])),
    "'next_observations' holds inf": replace(SOUND, next_observations=np.full((5, 11), np.inf, np.float32)),
    "'actions' reach 1.5": replace(SOUND, actions=np.full((5, 3), -1.5, np.float32)),
}


def test_unsound_transitions_and_damaged_files_are_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.safetensors"

    def refused(named: str) -> None:
        with pytest.raises(UserError) as caught:
            Transitions.load(path)
        assert str(caught.value).startswith(str(path))
        assert named in str(caught.value)

    for named, transitions in BROKEN.items():
        with pytest.raises(UserError) as caught:
            transitions.check("broken.safetensors", SPACES)
        assert "broken.safetensors: " in str(caught.value)
        assert named in str(caught.value)
    refused("no such file")
    BROKEN["'rewards' holds nan at (2,)"].save(path)
    refused("'rewards' holds nan")
    hopper_transitions().save(path)
    path.write_bytes(path.read_bytes()[:-100])
    refused("safetensors file")
    safetensors.numpy.save_file({"observations": np.zeros((2, 11))}, path)
    refused("'actions'")


def episode(first: float, steps: int, terminated: bool) -> Episode:
    """Observations first, first + 1, …, so that each transition shows where it comes from."""
    observations = np.arange(first, first + steps + 1)[:, None] * np.ones(11)
    return Episode(observations, np.zeros((steps, 3)), np.ones(steps), terminated)


def test_no_transition_crosses_an_episode_and_only_ends_are_terminal() -> None:
    dataset = from_episodes([episode(0, 2, True), episode(100, 3, False), episode(200, 1, True)])
    transitions = dataset.transitions
    assert transitions.observations[:, 0].tolist() == [0, 1, 100, 101, 102, 200]
    assert transitions.next_observations[:, 0].tolist() == [1, 2, 101, 102, 103, 201]
    assert transitions.terminals.tolist() == [False, True, False, False, False, True]
    assert dataset.episodes == 3
    assert dataset.returns.tolist() == [2, 1]  # the second was cut, so what it would have got is unknown


def test_a_cut_episode_is_not_terminal_and_a_full_one_is_complete() -> None:
    cut = episode(0, 5, True).first(3)
    assert (len(cut), len(cut.observations), cut.terminated, cut.complete) == (3, 4, False, False)
    assert episode(0, 5, True).first(5).terminated
    assert replace(episode(0, 5, False), truncated=True).complete
    assert not episode(0, 5, False).complete


def test_configuration_is_read_from_plain_values() -> None:
    adapter = pydantic.TypeAdapter(DataConfig)
    read = adapter.validate_json('{"source": "d4rl", "d4rl": {"Hopper": {"url": "a.hdf5"}}}', strict=True)
    assert read == DataConfig(source="d4rl", d4rl={"Hopper": D4RLFile("a.hdf5")})
    for bad in ('{"source": "csv"}', '{"transitions": 0}', '{"action_noise": -1}'):
        with pytest.raises(pydantic.ValidationError):
            adapter.validate_json(bad, strict=True)
