"""Files in D4RL's own format, whole and damaged; the boundary rule on episodes made by hand."""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from singleshot.errors import UserError
from singleshot.rl.data.d4rl import read_d4rl
from singleshot.rl.data.transitions import Recording
from singleshot.rl.environments import LOCOMOTION, Environment

HOPPER = LOCOMOTION["Hopper"]


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


def rows(recording: Recording) -> list[tuple[float, float, bool]]:
    """(s, s', terminal) of each transition."""
    transitions = recording.transitions
    return list(
        zip(
            transitions.observations[:, 0].tolist(),
            transitions.next_observations[:, 0].tolist(),
            transitions.terminals.tolist(),
            strict=True,
        )
    )


def elsewhere(file: h5py.File, kind: str, other: Path) -> None:
    """Let `rewards` come from another file, or take gigabytes to read."""
    rows = len(file["rewards"])
    del file["rewards"]
    if kind == "external storage":
        file.create_dataset("rewards", (rows,), "f4", external=[(str(other), 0, 4 * rows)])
    elif kind == "an external link":
        file["rewards"] = h5py.ExternalLink(str(other), "rewards")
    elif kind == "a virtual data set":
        layout = h5py.VirtualLayout((rows,), "f4")
        layout[:] = h5py.VirtualSource(str(other), "rewards", (rows,))
        file.create_virtual_dataset("rewards", layout)
    elif kind == "groups in groups":
        file.create_group("/".join("g" * 500))
    elif kind == "ragged rows":
        file.create_dataset("rewards", (rows,), h5py.vlen_dtype(np.float32))
    elif kind == "chunks of one number":
        file.create_dataset("rewards", (10**6,), "f4", chunks=(1,))
    elif kind.startswith("compressed"):
        stored = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        stored.set_chunk((rows,))
        if kind == "compressed by what its header says":
            stored.set_scaleoffset(h5py.h5z.SO_FLOAT_DSCALE, 3)
        else:
            stored.set_deflate(9)
        if kind == "compressed twice":
            stored.set_deflate(9)
        elif kind == "compressed in two ways":
            stored.set_filter(h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL, (4, 0x106, 4 * rows))
        space = h5py.h5s.create_simple((rows,))
        h5py.h5d.create(file.id, b"rewards", h5py.h5t.IEEE_F32LE, space, stored)
    else:
        file.create_dataset("rewards", (2_500_000_000,), "f4", chunks=(10**6,), compression="gzip")


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("external storage", "in another file"),
        ("an external link", "in another file"),
        ("a virtual data set", "in another file"),
        ("groups in groups", "20 groups deep"),
        ("ragged rows", "rows of any length"),
        ("chunks of one number", "claims 1,008,"),
        ("compressed twice", "compressed twice"),
        ("compressed in two ways", "compressed twice"),
        ("compressed by what its header says", "by scale-offset"),
        ("a bomb", "claims 20,002,505,152 "),
    ],
)
def test_a_file_opens_no_other_and_is_as_large_as_its_data(tmp_path: Path, kind: str, named: str):
    path, fifo = write(tmp_path / "file.hdf5", TERMINALS, TIMEOUTS), tmp_path / "fifo"
    os.mkfifo(fifo)  # whoever opens it waits for ever
    with h5py.File(path, "a") as file:
        elsewhere(file, kind, fifo)
    with pytest.raises(UserError, match=rf"file.hdf5: .*{named}"):
        read_d4rl(path, HOPPER)
    with pytest.raises(UserError, match="fifo: no such file"):
        read_d4rl(fifo, HOPPER)


def test_what_is_well_compressed_or_linked_within_the_file_is_read(tmp_path: Path):
    path = write(tmp_path / "file.hdf5", TERMINALS * 20, TIMEOUTS * 20, rewards=None)
    with h5py.File(path, "a") as file:
        file.create_dataset("kept/rewards", data=np.zeros(180, np.float32), compression="gzip")
        file["rewards"] = h5py.SoftLink("/kept/rewards")
        file["infos/unused"] = file["observations"]
        file["infos/texts"], file["metadata/empty"] = ["Hopper", "expert"], h5py.Empty("f4")
    assert not read_d4rl(path, HOPPER).transitions.rewards.any()


# Four episodes: rows 0-1 end in a terminal, 2-4 by the clock, 5-6 by both at once, 7-8 with the file.
TERMINALS = [0, 1, 0, 0, 0, 0, 1, 0, 0]
TIMEOUTS = [0, 0, 0, 0, 1, 0, 1, 0, 0]


def test_boundaries_without_recorded_next_observations(tmp_path: Path):
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


def test_boundaries_with_recorded_next_observations(tmp_path: Path):
    path = write(tmp_path / "a.hdf5", TERMINALS, TIMEOUTS, next_observations=recorded(9))
    dataset = read_d4rl(path, HOPPER)
    assert rows(dataset) == [(i, i + 0.5, i in (1, 6)) for i in range(9)]
    assert dataset.returns.tolist() == [1, 11]


def test_without_timeouts_an_episode_ends_after_a_thousand_steps(tmp_path: Path):
    """Rows 0-2 end in a terminal; then 1,000 to the limit (3-1002), and one more to the file's end."""
    terminals = [0, 0, 1] + [0] * 1001
    dataset = read_d4rl(write(tmp_path / "a.hdf5", terminals), HOPPER)
    kept = [int(s) for s, _, _ in rows(dataset)]
    assert kept == list(range(1002))  # not 1002, the last before the limit, nor 1003, the file's last
    assert rows(dataset)[1001] == (1001, 1002, False)
    assert dataset.episodes == 3
    assert dataset.returns.tolist() == [0 + 1 + 2, sum(range(3, 1003))]


def test_agrees_with_d4rls_own_rule_on_random_episodes(tmp_path: Path):
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


def refused(path: Path, named: str, environment: Environment | None = HOPPER):
    with pytest.raises(UserError) as caught:
        read_d4rl(path, environment)
    assert str(caught.value).startswith(f"{path}: ")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_single_numbers_are_vectors_of_one(tmp_path: Path):
    """Pendulum's torque, and without an environment a state of one number."""
    torques, angles = np.linspace(-2, 2, n), np.linspace(0, 1, n)
    states = {"observations": np.zeros((n, 3)), "next_observations": None}
    pendulum = read_d4rl(
        write(tmp_path / "a.hdf5", TERMINALS, actions=torques, **states), Environment("Pendulum-v1")
    )
    np.testing.assert_allclose(pendulum.transitions.actions, torques[:-1, None] / 2, atol=1e-6)
    states = {"observations": angles, "next_observations": angles + 1}
    alone = read_d4rl(write(tmp_path / "b.hdf5", TERMINALS, actions=torques / 2, **states)).transitions
    np.testing.assert_allclose(alone.next_observations, angles[:, None] + 1, atol=1e-6)
    assert (alone.state_size, alone.action_size) == (1, 1)


def test_columns_are_read_as_d4rl_does_and_ends_as_d3rlpy_does(tmp_path: Path):
    flat = read_d4rl(write(tmp_path / "a.hdf5", TERMINALS, TIMEOUTS), HOPPER)
    columns = {"rewards": np.arange(n, dtype=np.float64)[:, None]}
    columns |= {"terminals": np.array(TERMINALS)[:, None], "timeouts": np.array(TIMEOUTS)[:, None]}
    read = read_d4rl(write(tmp_path / "b.hdf5", TERMINALS, TIMEOUTS, **columns), HOPPER)
    assert rows(read) == rows(flat)
    assert read.transitions.rewards.tolist() == flat.transitions.rewards.tolist()
    assert read.doubts == ()
    ends = np.array(TERMINALS) | np.array(TIMEOUTS)
    d3rlpy = write(tmp_path / "c.hdf5", TERMINALS, episode_terminals=ends)
    assert rows(read_d4rl(d3rlpy, HOPPER)) == rows(flat)


def continuous(n: int, *starts: int) -> np.ndarray:
    """The s' of rows that follow on one another, but before the rows at which other episodes start."""
    following = np.arange(1, n + 1, dtype=np.float32)
    following[np.array(starts, int) - 1] += 0.5
    return following[:, None] * np.ones((1, 11), np.float32)


def test_full_episodes_in_a_row_whether_timeouts_are_missing_or_never_marked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """As HalfCheetah's files are: no terminal at all."""
    for timeouts in (None, [0] * 2500):
        dataset = read_d4rl(write(tmp_path / "a.hdf5", [0] * 2500, timeouts), HOPPER)
        kept = [int(s) for s, _, _ in rows(dataset)]
        assert kept == [*range(999), *range(1000, 1999), *range(2000, 2499)]
        assert dataset.returns.tolist() == [sum(range(1000)), sum(range(1000, 2000))]
    assert ["cut after 1,000 steps" in record.getMessage() for record in caplog.records] == [True, True]


def test_unmarked_ends_are_seen_where_next_observations_are_recorded(tmp_path: Path):
    """Three episodes of 300, 700 and 1,000 steps, of which no flag tells; and one longer than the limit."""
    path, none = tmp_path / "a.hdf5", [0] * 2000
    following = continuous(2000, 300, 1000, 2000)
    dataset = read_d4rl(write(path, none, none, next_observations=following), HOPPER)
    assert (len(dataset.transitions), dataset.episodes) == (2000, 3)
    assert dataset.returns.tolist() == [sum(range(1000, 2000))]
    assert dataset.doubts == ("2 episodes end without a terminal or a time-out that says so",)
    long = read_d4rl(write(path, none, none, next_observations=continuous(2000)), HOPPER)
    assert (len(long.transitions), long.episodes, long.doubts) == (2000, 1, ())


def test_a_terminal_at_the_time_limit_is_a_time_out(tmp_path: Path):
    """Rows 0-999 reach the limit, 1000-1001 end before it."""
    ends = [0] * 999 + [1, 0, 1]
    dataset = read_d4rl(write(tmp_path / "a.hdf5", ends, [0] * 1002), HOPPER)
    assert [s for s, _, terminal in rows(dataset) if terminal] == [1001]
    assert len(dataset.transitions) == 1001  # s' of the limit's step isn't recorded
    assert dataset.returns.tolist() == [sum(range(1000)), 1000 + 1001]
    assert dataset.doubts == ("1 'terminals' stand at the time limit, read as time-outs",)


def test_the_first_state_of_the_next_episode_is_not_taken_for_an_outcome(tmp_path: Path):
    """As vectorised environments return it that reset themselves: at rows 2 and 4, but not at 6."""
    timeouts = [0, 0, 1, 0, 1, 0, 1, 0, 0]
    path = write(tmp_path / "a.hdf5", [0] * 9, timeouts, next_observations=continuous(9, 7))
    dataset = read_d4rl(path, HOPPER)
    assert [s for s, _, _ in rows(dataset)] == [0, 1, 3, 5, 6, 7, 8]
    assert "s' of 2 time-outs is the next episode's first state" in dataset.doubts[0]


def test_the_state_after_the_last_step_may_be_a_row_more(tmp_path: Path):
    observations = np.arange(n + 1)[:, None] * np.ones(11)
    path = write(tmp_path / "a.hdf5", TERMINALS, [*TIMEOUTS[:-1], 1], observations=observations)
    dataset = read_d4rl(path, HOPPER)
    assert rows(dataset)[-1] == (8, 9, False)
    assert len(dataset.doubts) == 1


def test_actions_a_little_beyond_are_clipped_and_large_rewards_are_told(tmp_path: Path):
    actions = np.zeros((n, 3))
    actions[3, 1] = -1.4
    path = write(tmp_path / "a.hdf5", TERMINALS, TIMEOUTS, actions=actions, rewards=np.full(n, 1e12))
    dataset = read_d4rl(path, HOPPER)
    assert dataset.transitions.actions.min() == -1
    clipped, large = dataset.doubts
    assert "3.7% of 'actions'" in clipped
    assert "'rewards' reach 1e+12" in large


@pytest.mark.parametrize("marked", [True, False])
def test_one_row_is_a_dataset(tmp_path: Path, marked: bool):
    path = write(tmp_path / "a.hdf5", [int(marked)], [0], next_observations=None if marked else recorded(1))
    assert rows(read_d4rl(path, HOPPER)) == [(0, 0 if marked else 0.5, marked)]


def test_damage_is_one_clear_error(tmp_path: Path):
    path = tmp_path / "hopper.hdf5"
    damage: list[tuple[str, dict[str, Any]]] = [
        ("'rewards'", {"rewards": None, "terminals": None}),
        ("'rewards' holds nan at (3,)", {"rewards": np.where(np.arange(n) == 3, np.nan, 0)}),
        ("'rewards' has shape (8,)", {"rewards": np.zeros(n - 1)}),
        ("'next_observations' has shape (10, 11)", {"next_observations": recorded(n + 1)}),
        ("'observations' has shape (11, 11)", {"observations": np.zeros((n + 2, 11))}),
        ("'actions' has shape (9, 6), Hopper", {"actions": np.zeros((n, 6))}),
        ("'terminals'", {"terminals": 0}),
        ("'rewards' is", {"rewards": np.full(n, b"1.0")}),
        ("'rewards' reach 9.2e+18", {"rewards": np.full(n, np.iinfo(np.int64).min)}),
        ("'observations' reach 3e+24", {"observations": np.full((n, 11), -3e24)}),
        ("'terminals' holds -1 at (0,)", {"terminals": np.where(TERMINALS, 1, -1)}),
        ("'actions' reach 128", {"actions": np.full((n, 3), -128, np.int8)}),
    ]
    for named, changed in damage:
        refused(write(path, TERMINALS, TIMEOUTS, **changed), named)
    refused(write(path, []), "no transition")
    pictures = {"observations": np.zeros((n, 8, 8), np.uint8)}
    refused(write(path, TERMINALS, **pictures), "'observations' is uint8 of shape (9, 8, 8)", None)
    refused(write(path, TERMINALS, actions=np.arange(n)), "'actions' is int64 of shape (9,)", None)

    whole = write(path, TERMINALS, TIMEOUTS).read_bytes()
    for content in (whole[: len(whole) // 2], b"reward,done\n", b""):
        path.write_bytes(content)
        refused(path, "HDF5 can't read it (OSError")
    refused(tmp_path / "gone.hdf5", "no such file")
    with h5py.File(write(path, TERMINALS, rewards=None), "a") as file:  # as Blosc's without hdf5plugin
        stored = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        stored.set_chunk((n,))
        stored.set_filter(32999, h5py.h5z.FLAG_OPTIONAL)
        space = h5py.h5s.create_simple((n,))
        rewards = h5py.h5d.create(file.id, b"rewards", h5py.h5t.NATIVE_DOUBLE, space, stored)
        rewards.write_direct_chunk((0,), bytes(8 * n))
    refused(path, "pip install hdf5plugin")
    with h5py.File(path, "w") as file:
        file["observations/goal"] = np.zeros((n, 2))
    refused(path, "has no array 'observations' among ['observations']")


def test_what_is_doubtful_is_told_once(tmp_path: Path):
    filled, dense = np.maximum(20 - np.arange(300), 0)[:, None], np.ones(11)
    shuffled = np.random.default_rng(0).permutation(300)[:, None] * dense
    for doubt, terminals, changed in (
        ("most steps are terminals", [1, 0] * 150 + [1], {}),
        ("all 'rewards' are 0", [0] * 300, {"rewards": np.zeros(300)}),
        ("93% of the rows are 0", [0] * 300, {"observations": filled * dense, "rewards": filled}),
        ("successive rows differ by", [0] * 300, {"observations": shuffled}),
        ("whole numbers", [0] * 300, {"actions": np.eye(300, 3) + 1}),
    ):
        (told,) = read_d4rl(write(tmp_path / "a.hdf5", terminals, **changed)).doubts
        assert doubt in told
