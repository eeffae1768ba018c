"""A full disk is named in one line, wherever it is."""

import contextlib
import errno
import os
import re
import sqlite3
import subprocess
from pathlib import Path

import pytest
from made import MADE
from toy_tasks.work import SumParams, add_up

from pipelines.engine.cells import Cell, CellStore
from pipelines.engine.disks import DiskFullError, disk_full_error, is_disk_full
from pipelines.engine.run import CellBatch, ExecutorConfig, Recorder, Sweep, execute
from pipelines.engine.tracking import TrackingConfig, tracking


@pytest.fixture
def small_disk(tmp_path):
    """A disk of three megabytes."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk")
    (mount := tmp_path / "small").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(mount)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this container may not mount a disk")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def write_four_megabytes(jobs):
    (jobs[0].output / "large").write_bytes(bytes(4_000_000))
    yield


CELL = Cell("large", write_four_megabytes, SumParams(1))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("SafetensorError: I/O error: No space left on device (os error 28)"),
        sqlite3.OperationalError("database or disk is full"),
    ],
)
def test_errors_of_a_full_disk_are_known_also_as_causes(error):
    other = RuntimeError("could not save")
    assert not is_disk_full(other)
    other.__cause__ = error
    assert is_disk_full(other)
    assert not is_disk_full(OSError(errno.EACCES, "Permission denied"))


def test_the_disk_of_the_store_is_named(small_disk, monkeypatch):
    monkeypatch.chdir(small_disk.parent)
    Path(".cells").symlink_to(small_disk)
    with pytest.raises(OSError) as told:  # noqa: PT011
        CellStore(Path(".cells")).commit(Cell("sum", add_up, SumParams(1)), {"large": bytes(4_000_000)}, MADE)
    assert is_disk_full(told.value)
    assert re.match(r"\.cells.*: the disk is full \(.* of 3 MB", str(disk_full_error(told.value)))


def test_the_disk_of_temporary_files_is_named(small_disk, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    with pytest.raises(DiskFullError, match=f"^{small_disk}.*: the disk is full"):
        list(execute(CellBatch((CELL,)), [{}], [None], ExecutorConfig("local"), gpu=False))


class Silent(Recorder):
    """Records nothing."""


def test_a_full_disk_ends_a_sweep_wherever_a_worker_has_met_it(tmp_path):
    """Not only in the task: also where its inputs are written, before it is called."""
    met = RuntimeError("in the cell's process:\nOSError: [Errno 28] No space left on device: '/scratch/a'")
    cell = Cell("sum", add_up, SumParams(1))
    with Sweep([cell], CellStore(tmp_path), Silent()) as sweep, pytest.raises(DiskFullError):
        sweep.ended(CellBatch((cell,)), met)


def test_the_disk_of_mlflows_database_is_named(small_disk, caplog, capfd):
    database = small_disk / "mlflow.db"
    cell = Cell("sum", add_up, SumParams(1))

    def record():
        with tracking(TrackingConfig(f"sqlite:///{database}"), "prune", "smoke") as tracker:
            tracker.started(cell)
            filler = (small_disk / "filler").open("wb", buffering=0)
            with filler as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(1024))
            for step in range(1000):
                tracker.metrics(cell, step, {"loss": 0.0})
                tracker.flush()

    with pytest.raises(DiskFullError, match=f"^{database}: the disk is full"):
        record()
    assert not caplog.text
    assert "Traceback" not in "".join(capfd.readouterr())
