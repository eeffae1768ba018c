"""Files in D4RL's own format, whole and damaged; the boundary rule on episodes made by hand."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from singleshot.errors import UserError
from singleshot.rl.data.d4rl import read_d4rl
from singleshot.rl.data.transitions import Dataset
from singleshot.rl.environments import TASKS

HOPPER = TASKS["Hopper"]


def write(path: Path, terminals: list[int], timeouts: list[int] | None = None, /, **changed: Any) -> Path:
    """A file whose row i observes i, is rewarded i, and whose own s' (if asked for) is i + 0.5.

    `changed` replaces an array, or leaves it out where it is None.
    """
    n = len(terminals)
    rows = np.arange(n, dtype=np.float32)
    arrays: dict[str, Any] = {
        "observations": rows[:, None] * np.ones((1, 11), np.float32),
        "actions": np.zeros((n, 3), np.float32),
        "rewards": rows,
        "terminals": np.array(terminals, bool),
        "timeouts": None if timeouts is None else np.array(timeouts, bool),
    } | changed
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            if values is not None:
                file[key] = values
        file["metadata/policy"] = "as the real files have it, and nobody reads"
    return path


def recorded(n: int) -> np.ndarray:
    return (np.arange(n)[:, None] + 0.5) * np.ones(11)


def rows(dataset: Dataset) -> list[tuple[float, float, bool]]:
    """(s, s', terminal) of each transition."""
    transitions = dataset.transitions
    return list(
        zip(
            transitions.observations[:, 0].tolist(),
            transitions.next_observations[:, 0].tolist(),
            transitions.terminals.tolist(),
            strict=True,
        )
    )


# Four episodes: rows 0-1 end in a terminal, 2-4 by the clock, 5-6 by both at once, 7-8 with the file.
TERMINALS = [0, 1, 0, 0, 0, 0, 1, 0, 0]
TIMEOUTS = [0, 0, 0, 0, 1, 0, 1, 0, 0]


def test_boundaries_without_recorded_next_observations(tmp_path: Path) -> None:
    dataset = read_d4rl(write(tmp_path / "a.hdf5", TERMINALS, TIMEOUTS), HOPPER)
    assert rows(dataset) == [
        (0, 1, False),
        (1, 1, True),  # s' was not recorded: its own s stands in, never row 2 of the next episode
        (2, 3, False),
        (3, 4, False),
        # 4: cut by the clock, no s'
        (5, 6, False),
        (6, 6, True),
        (7, 8, False),
        # 8: the file ends, no s'
    ]
    assert dataset.transitions.rewards.tolist() == [0, 1, 2, 3, 5, 6, 7]
    assert dataset.episodes == 4
    assert dataset.returns.tolist() == [0 + 1, 5 + 6]


def test_boundaries_with_recorded_next_observations(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", TERMINALS, TIMEOUTS, next_observations=recorded(9))
    dataset = read_d4rl(path, HOPPER)
    assert rows(dataset) == [(i, i + 0.5, i in (1, 6)) for i in range(9)]
    assert dataset.returns.tolist() == [1, 11]


def test_without_timeouts_an_episode_ends_after_a_thousand_steps(tmp_path: Path) -> None:
    """Rows 0-2 end in a terminal; then 1,000 to the limit (3-1002), and one more to the file's end."""
    terminals = [0, 0, 1] + [0] * 1001
    dataset = read_d4rl(write(tmp_path / "a.hdf5", terminals), HOPPER)
    kept = [int(s) for s, _, _ in rows(dataset)]
    assert kept == list(range(1002))  # not 1002, the last before the limit, nor 1003, the file's last
    assert rows(dataset)[1001] == (1001, 1002, False)
    assert dataset.episodes == 3
    assert dataset.returns.tolist() == [0 + 1 + 2, sum(range(3, 1003))]


def test_full_episodes_in_a_row(tmp_path: Path) -> None:
    """As HalfCheetah's files are: no terminal at all."""
    dataset = read_d4rl(write(tmp_path / "a.hdf5", [0] * 2500), HOPPER)
    kept = [int(s) for s, _, _ in rows(dataset)]
    assert kept == [*range(999), *range(1000, 1999), *range(2000, 2499)]
    assert dataset.returns.tolist() == [sum(range(1000)), sum(range(1000, 2000))]


def test_agrees_with_d4rls_own_rule_on_random_episodes(tmp_path: Path) -> None:
    """The rule of `d4rl.qlearning_dataset`, one step after another."""
    random = np.random.default_rng(0)
    terminals = (random.random(5000) < 0.002).astype(int)
    kept, step = [], 0
    for i in range(len(terminals) - 1):
        if step == 999 and not terminals[i]:
            step = 0
            continue
        kept.append(i)
        step = 0 if terminals[i] or step == 999 else step + 1
    dataset = read_d4rl(write(tmp_path / "a.hdf5", terminals.tolist()), HOPPER)
    assert terminals[-1] == 0
    assert [int(s) for s, _, _ in rows(dataset)] == kept
    assert len(kept) < 5000 - 1  # the limit was reached


n = len(TERMINALS)
DAMAGE: dict[str, tuple[dict[str, Any], str]] = {
    "missing key": (
        {"rewards": None},
        r"has no 'rewards', only \['actions', 'metadata', .*; a D4RL file holds",
    ),
    "two missing": ({"rewards": None, "terminals": None}, "has no 'rewards', 'terminals', only"),
    "NaN": ({"rewards": np.where(np.arange(n) == 3, np.nan, 0)}, r"'rewards' holds nan at \(3,\)"),
    "lengths differ": (
        {"rewards": np.zeros(n - 1)},
        "'rewards' has 8 rows, 'actions' 9; the file is truncated",
    ),
    "next lengths differ": (
        {"next_observations": recorded(n + 1)},
        "'next_observations' has 10 rows, 'actions' 9",
    ),
    "wrong observations": (
        {"observations": np.zeros((n, 17))},
        r"'observations' has shape \(9, 17\), Hopper needs \(9, 11\); is it another task's file",
    ),
    "wrong actions": ({"actions": np.zeros((n, 6))}, r"'actions' has shape \(9, 6\), Hopper needs \(9, 3\)"),
    "column of rewards": (
        {"rewards": np.zeros((n, 1))},
        r"'rewards' has shape \(9, 1\), Hopper needs \(9,\)",
    ),
    "scalar": ({"terminals": 0}, "'terminals' has 0 rows, 'actions' 9"),
    "action range": ({"actions": np.full((n, 3), 2.0)}, r"'actions' reach 2, this task's are in \[-1, 1\]"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_clear_error(tmp_path: Path, damage: str) -> None:
    changed, message = DAMAGE[damage]
    path = write(tmp_path / "hopper.hdf5", TERMINALS, TIMEOUTS, **changed)
    with pytest.raises(UserError, match=rf"hopper\.hdf5: {message}"):
        read_d4rl(path, HOPPER)


def test_no_row_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no transition"):
        read_d4rl(write(tmp_path / "a.hdf5", []), HOPPER)


def test_truncated_or_other_files(tmp_path: Path) -> None:
    path = write(tmp_path / "hopper.hdf5", TERMINALS, TIMEOUTS)
    whole = path.read_bytes()
    for cut in (len(whole) // 2, 100, 0):
        path.write_bytes(whole[:cut])
        with pytest.raises(
            UserError, match=r"hopper\.hdf5: not a whole HDF5 file .*; replace it, or delete it"
        ):
            read_d4rl(path, HOPPER)
    with pytest.raises(UserError, match=r"no such file; correct offline_rl\.data\.d4rl"):
        read_d4rl(tmp_path / "gone.hdf5", HOPPER)
