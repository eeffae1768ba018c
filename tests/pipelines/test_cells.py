import dataclasses
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from made import MADE
from power import PowerCut, disk_at
from toy_tasks.work import SumParams, add_up

from pipelines.engine.cells import Cell, CellStore
from pipelines.engine.processes import this_process
from pipelines.engine.remote_cells import RemoteCellStore
from singleshot.errors import UserError
from singleshot.io.whole_file import sync


def test_digest_covers_task_parameters_and_input_contents_and_nothing_of_this_process(tmp_path):
    data = tmp_path / "data"
    data.write_text("one")
    code = (
        "from pathlib import Path; from pipelines.engine.cells import Cell; "
        "from toy_tasks.work import SumParams, add_up; "
        "print(Cell('n', add_up, SumParams(1), {'x': Path('data')}).digest)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code]
    there = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)
    base = Cell("other name", add_up, SumParams(1), {"x": data})
    assert there.strip() == base.digest
    digests = {
        base.digest,
        dataclasses.replace(base, params=SumParams(2)).digest,
        dataclasses.replace(base, inputs={"y": data}).digest,
    }
    data.write_text("two!")
    digests.add(dataclasses.replace(base).digest)
    assert len(digests) == 4


@pytest.fixture(params=["directory", "s3"])
def store(request, tmp_path):
    """What follows is true of a store wherever it keeps its cells; test_cells_remote.py has the rest."""
    if request.param == "directory":
        return CellStore(tmp_path / "cells")
    return RemoteCellStore(tmp_path / "cells", request.getfixturevalue("bucket_url"))


CELL = Cell("a/b", add_up, SumParams(1))


def test_commit_link_or_copy_and_manifest(store, tmp_path, monkeypatch):
    def no_link(*_):
        raise OSError("cross-device")

    store.commit(CELL, {"result.json": b"{}", "sub/more.bin": b"\0\1"}, MADE)
    assert store.has(CELL)
    store.link(CELL, tmp_path / "out")
    assert sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*")) == [
        "result.json",
        "sub/more.bin",
    ]
    assert (tmp_path / "out" / "result.json").samefile(store.path(CELL.digest) / "result.json")
    assert (tmp_path / "out" / "result.json").stat().st_mode & 0o222 == 0  # not written by accident
    manifest = json.loads((store.path(CELL.digest) / "cell.json").read_text())
    assert manifest["params"]["start"] == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", no_link)
        store.link(CELL, tmp_path / "copied")
    assert (tmp_path / "copied/result.json").read_bytes() == b"{}"
    store.commit(CELL, {"result.json": b"{}"}, MADE)  # as another driver may
    assert store.has(CELL)
    assert not list((store.root / "staging").iterdir())


def test_a_damaged_cell_is_computed_again(store, caplog):
    for name, left in (("result.json", b'{"sum": 2}'), ("result.json", None), ("cell.json", b"{")):
        store.commit(CELL, {"result.json": b'{"sum": 1}'}, MADE)
        file = store.path(CELL.digest) / name
        file.chmod(0o644)
        file.unlink() if left is None else file.write_bytes(left)
        assert not store.has(CELL)
        assert not store.path(CELL.digest).exists()
    own = store.root / "own"
    own.mkdir()
    store.path(CELL.digest).symlink_to(own)
    assert not store.has(CELL)
    assert own.is_dir()
    store.path(CELL.digest).write_text("not a folder")
    assert not store.has(CELL)
    assert caplog.text.count("is damaged; computing") == 5


def test_a_cell_is_known_by_its_manifest_not_by_its_folder_s_name(store, tmp_path):
    """Whoever may write to a shared store may add files, and move contents."""
    other = Cell("another", add_up, SumParams(2))
    for cell in (CELL, other):
        store.commit(cell, {"result.json": b"{}"}, MADE)
        assert store.has(cell)
    here, there = store.path(CELL.digest), store.path(other.digest)
    (here / "agent.safetensors").write_bytes(b"of a stranger")
    assert not store.has(CELL)
    store.commit(CELL, {"result.json": b"{}"}, MADE)
    for old, new in ((here, tmp_path / "aside"), (there, here), (tmp_path / "aside", there)):
        old.rename(new)
    assert not store.has(CELL)
    assert not store.has(other)


def test_newest_checkpoint_wins_and_a_half_written_or_damaged_one_is_ignored(store, caplog):
    assert store.checkpoint(CELL) is None
    store.save_checkpoint(CELL, 9, b"nine")
    store.save_checkpoint(CELL, 10, b"ten")
    checkpoints = store.root / "checkpoints" / CELL.digest
    (checkpoints / "11.partial").write_bytes(b"el")
    saved = store.checkpoint(CELL)
    assert (saved.step, saved.state) == (10, b"ten")
    for left in (b"", b"ten and more"):
        (saved,) = (file for file in checkpoints.iterdir() if file.suffix != ".partial")
        saved.write_bytes(left)
        assert store.checkpoint(CELL) is None
        assert not saved.exists()
        store.save_checkpoint(CELL, 10, b"ten")
    assert caplog.text.count("is damaged; the cell") >= 2
    store.commit(CELL, {"result.json": b"1"}, MADE)
    assert store.checkpoint(CELL) is None


def test_what_a_killed_driver_left_half_written_is_removed_and_a_living_ones_is_not(store):
    code = "from pipelines.engine.processes import this_process; print(this_process())"
    gone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    staging = store.root / "staging"
    (staging / f"{gone.stdout.strip()}-cell").mkdir(parents=True)
    (staging / f"{gone.stdout.strip()}-cell/half").write_bytes(b"ha")
    (staging / f"{gone.stdout.strip()}-checkpoint").write_bytes(b"ha")
    living = [staging / f"{this_process()}-checkpoint", staging / "another-machine:1:2-checkpoint"]
    for path in living:
        path.write_bytes(b"ha")
    store.prepare()
    assert sorted(staging.iterdir()) == sorted(living)


def test_a_store_that_another_user_has_made_is_refused_before_anything_is_computed(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    store = CellStore(tmp_path / "cells")
    store.prepare()
    for folder in (tmp_path.parent.parent, tmp_path.parent, tmp_path, store.root):
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(UserError, match=f"{store.root}.*Permission denied.*SINGLESHOT_CELLS"):
            store.prepare()
    finally:
        os.seteuid(0)


def test_two_drivers_on_one_disk_both_finish_a_cell(tmp_path):
    def compute(content):
        store = CellStore(tmp_path / "cells")
        for step in range(200):
            store.save_checkpoint(CELL, step, content)
        store.commit(CELL, {"result.json": content}, MADE)
        return store.has(CELL)

    with ThreadPoolExecutor(2) as drivers:
        # One that has finished it already drops the checkpoints of two that are at it.
        slow = [drivers.submit(compute, content) for content in (b"0.3", b"0.30000000000000004")]
        store = CellStore(tmp_path / "cells")
        while not all(driver.done() for driver in slow):
            store.commit(CELL, {"result.json": b"0.3"}, MADE)
        assert all(driver.result() for driver in slow)
    store.commit(CELL, {"result.json": b"0.3"}, MADE)
    assert not list((store.root / "staging").iterdir())


@pytest.fixture
def disk(tmp_path):
    """A disk that keeps only what is synced, with a store on it."""
    root = tmp_path / "disk"
    root.mkdir()
    with disk_at(root) as disk:
        disk.store = CellStore(root / "cells")
        disk.store.save_checkpoint(CELL, 1, b"one")
        sync(root)
        yield disk


def until_the_power_is_cut(disk, operations, action):
    """Whether `action` came to its end within a number of operations; then the power is off."""
    disk.left = operations
    try:
        action(disk.store)
    except PowerCut:
        return False
    finally:
        disk.cut()
    return True


@pytest.mark.parametrize("operations", range(40))
def test_a_power_cut_leaves_the_newest_checkpoint_or_the_one_before(disk, operations):
    saved = until_the_power_is_cut(disk, operations, lambda store: store.save_checkpoint(CELL, 2, b"two"))
    found = disk.store.checkpoint(CELL)
    assert (found.step, found.state) in ([(2, b"two")] if saved else [(1, b"one"), (2, b"two")])


@pytest.mark.parametrize("operations", range(60))
def test_a_power_cut_leaves_the_cell_or_its_checkpoint(disk, operations):
    def finish(store):
        store.save_artifact(CELL, "preview/shown.txt", b"shown")
        store.commit(CELL, {"result.json": b"1"}, MADE)

    saved = until_the_power_is_cut(disk, operations, finish)
    disk.store.prepare()
    if disk.store.has(CELL):
        assert not (disk.store.root / "checkpoints" / CELL.digest).exists()
        assert (disk.store.path(CELL.digest) / "preview/shown.txt").read_bytes() == b"shown"
    else:
        assert not saved
        assert disk.store.checkpoint(CELL).state == b"one"
