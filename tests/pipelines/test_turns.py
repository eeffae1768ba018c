"""Two at once in one checkout: each is told, waits or shares."""

import shutil
import signal
import subprocess
import sys

import pytest
from checkouts import ROOT
from waiting import wait_until

HOLD = "from pathlib import Path; from pipelines.engine.turns import alone, in_use; import sys\n"
IN_USE = HOLD + "with in_use(): print('in', flush=True); sys.stdin.read()"
ALONE = HOLD + "with alone(Path('stage.lock'), 'the stage train'): print('in', flush=True); sys.stdin.read()"


class Process:
    """Python code that says when it is in, and ends with its standard input."""

    def __init__(self, code, directory):
        self.errors = directory / f"errors-{len(list(directory.iterdir()))}"
        self.said = self.errors.with_name(f"{self.errors.name}-said")
        with self.errors.open("w") as errors, self.said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                cwd=directory,
                env={"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=errors,
            )

    def is_in(self):
        return self.said.read_text() == "in\n"

    def end(self):
        self.process.communicate()
        return self.process.returncode


@pytest.fixture
def checkout(tmp_path):
    """As much of a checkout as `make clean` wants."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pipelines/__init__.py", "pipelines/engine/__init__.py", "pipelines/engine/turns.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "results").mkdir()
    return tmp_path


@pytest.fixture
def start(checkout):
    started = []

    def start(code):
        started.append(Process(code, checkout))
        return started[-1]

    yield start
    for process in started:
        process.process.kill()
        process.process.wait()


def clean(checkout):
    command = ["make", "clean", f"PYTHON={sys.executable} -S"]  # without any package
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)


def test_make_clean_leaves_a_checkout_alone_in_which_something_runs(checkout, start):
    runs = [start(IN_USE), start(IN_USE)]
    wait_until(lambda: all(run.is_in() for run in runs), "two share the checkout")
    done = clean(checkout)
    assert done.returncode != 0
    pids = ", ".join(str(pid) for pid in sorted(run.process.pid for run in runs))
    assert f"error: process {pids} works in this checkout" in done.stderr
    assert (checkout / "results").exists()
    runs[0].end()
    runs[1].process.send_signal(signal.SIGKILL)
    runs[1].process.wait()
    assert clean(checkout).returncode == 0
    assert not (checkout / "results").exists()


def test_make_clean_leaves_a_checkout_alone_that_dvc_has_locked(checkout, start):
    (checkout / ".dvc/tmp").mkdir()
    lock = "import zc.lockfile, sys; kept = zc.lockfile.LockFile('.dvc/tmp/lock');"
    dvc = start(f"{lock} print('in', flush=True); sys.stdin.read()")
    wait_until(dvc.is_in, "DVC has its lock")
    assert "works in this checkout" in clean(checkout).stderr
    dvc.end()
    assert clean(checkout).returncode == 0


@pytest.mark.parametrize("end", ["ends", "is killed"])
def test_of_two_drivers_of_a_stage_the_second_is_told_and_waits(start, end):
    first = start(ALONE)
    wait_until(first.is_in, "the first is at it")
    second = start(ALONE)
    words = f"waiting for process {first.process.pid}, which is at the stage train\n"
    wait_until(lambda: second.errors.read_text() == words, "the second is told")
    assert not second.is_in()
    if end == "ends":
        assert first.end() == 0
    else:
        first.process.kill()
    wait_until(second.is_in, "it is the second's turn")
    assert second.end() == 0


def test_a_third_waits_for_the_second_though_the_first_has_removed_the_lock(checkout, start):
    first = start(ALONE)
    wait_until(first.is_in, "the first is at it")
    second = start(ALONE)
    wait_until(second.errors.read_text, "the second waits")
    first.end()
    wait_until(second.is_in, "it is the second's turn")
    third = start(ALONE)
    words = f"waiting for process {second.process.pid}, which is at the stage train\n"
    wait_until(third.errors.read_text, "the third waits")
    assert third.errors.read_text() == words
    second.end()
    wait_until(third.is_in, "it is the third's turn")
    third.end()
    assert not (checkout / "stage.lock").exists()


def test_elsewhere_than_in_a_checkout_nothing_is_locked(tmp_path):
    outside = Process(IN_USE, tmp_path)
    wait_until(outside.is_in, "it needs no lock")
    assert outside.end() == 0
    assert not (tmp_path / ".dvc").exists()
