"""Two at once in one checkout: each is told, waits or shares."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from functools import partial

import pytest
from checkouts import BIN, ROOT
from ports import free_port
from waiting import wait_until

HOLD = "from pathlib import Path; from pipelines.engine.turns import alone, in_use; import sys\n"
SAY = "print('in', flush=True); sys.stdin.read()"
PYTHON = (sys.executable, "-c")
IN_USE = (*PYTHON, f"{HOLD}with in_use(): {SAY}")
ALONE = (*PYTHON, f"{HOLD}with alone(Path('stage.lock'), 'the stage train'): {SAY}")


class Process:
    """A command in a session of its own. Python code says when it is in, and ends with its standard input."""

    def __init__(self, directory, *command):
        self.errors = directory / f"errors-{len(list(directory.iterdir()))}"
        self.said = self.errors.with_name(f"{self.errors.name}-said")
        with self.errors.open("w") as errors, self.said.open("w") as said:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env={"PYTHONPATH": str(ROOT), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=errors,
            )

    def is_in(self):
        assert self.process.poll() is None, self.errors.read_text()
        return self.said.read_text() == "in\n"

    def end(self):
        self.process.communicate()
        return self.process.returncode


@pytest.fixture
def checkout(tmp_path):
    """As much of a checkout as `make clean` and the commands want."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pipelines", "tasks", "singleshot", "params.yaml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    (tmp_path / "results/style").mkdir(parents=True)
    for name in (".gitignore", "speed.csv"):
        (tmp_path / "results/style" / name).touch()
    return tmp_path


@pytest.fixture
def start(checkout):
    started = []

    def start(*command):
        started.append(Process(checkout, *command))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.process.pid, signal.SIGKILL)
        process.process.wait()


def at_a_stage(checkout, start):
    """DVC while it runs a stage's command, which never ends."""
    (checkout / "dvc.yaml").write_text("stages: {slow: {cmd: touch begun; sleep 9999, outs: [results/a]}}")
    dvc = start(sys.executable, "-m", "dvc", "repro")
    begun = checkout / "begun"
    wait_until(lambda: begun.exists() or dvc.process.poll() is not None, "DVC runs the stage's command")
    return dvc


def clean(checkout):
    command = ["make", "clean", f"PYTHON={sys.executable} -S"]  # without any package
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)


def outputs(checkout):
    return sorted(path.name for path in (checkout / "results/style").iterdir())


def test_make_clean_leaves_a_checkout_alone_in_which_something_runs(checkout, start):
    runs = [start(*IN_USE), start(*IN_USE)]
    wait_until(lambda: all(run.is_in() for run in runs), "two share the checkout")
    done = clean(checkout)
    assert done.returncode != 0
    pids = ", ".join(str(pid) for pid in sorted(run.process.pid for run in runs))
    assert f"error: process {pids} works in this checkout" in done.stderr
    assert outputs(checkout) == [".gitignore", "speed.csv"]
    runs[0].end()
    runs[1].process.send_signal(signal.SIGKILL)
    runs[1].process.wait()
    assert clean(checkout).returncode == 0
    assert outputs(checkout) == [".gitignore"]  # which git tracks


def test_make_clean_leaves_a_checkout_alone_that_dvc_has_locked(checkout, start):
    (checkout / ".dvc/tmp").mkdir()
    lock = "import zc.lockfile, sys; kept = zc.lockfile.LockFile('.dvc/tmp/lock');"
    dvc = start(*PYTHON, f"{lock} {SAY}")
    wait_until(dvc.is_in, "DVC has its lock")
    assert "works in this checkout" in clean(checkout).stderr
    dvc.end()
    assert clean(checkout).returncode == 0


def test_make_clean_leaves_a_checkout_alone_in_which_dvc_has_begun_a_stage(checkout, start):
    """It has unlocked by then, and the stage's command has locked nothing yet."""
    dvc = at_a_stage(checkout, start)
    assert f"error: process {dvc.process.pid} works in this checkout" in clean(checkout).stderr
    assert outputs(checkout) == [".gitignore", "speed.csv"]
    dvc.process.kill()
    dvc.process.wait()
    record = checkout / ".dvc/tmp/rwlock"
    assert str(dvc.process.pid) in record.read_text()
    # Another process may have got the id.
    record.write_text(record.read_text().replace(str(dvc.process.pid), str(os.getpid())))
    assert clean(checkout).returncode == 0
    assert outputs(checkout) == [".gitignore"]


def test_make_params_says_that_a_run_will_read_its_settings(checkout, start):
    (checkout / "conf").symlink_to(ROOT / "conf")
    (checkout / "params.yaml").unlink()
    compose = (sys.executable, "-m", "pipelines", "params", "profile=smoke")
    first = subprocess.run(compose, cwd=checkout, capture_output=True, text=True, check=True)
    assert first.stderr == ""
    dvc = at_a_stage(checkout, start)
    again = subprocess.run(compose, cwd=checkout, capture_output=True, text=True, check=True)
    assert again.stderr.startswith(f"note: process {dvc.process.pid}, dvc, is running here")
    dvc.process.kill()
    dvc.process.wait()


def test_make_repro_refuses_parameters_that_dvc_would_fail_on(checkout):
    environment = checkout / ".venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (environment / "bin/python").chmod(0o755)
    (environment / "pyvenv.cfg").touch()
    (checkout / "requirements.lock").touch()
    (environment / ".installed").touch()
    repro = partial(subprocess.run, ["make", "repro"], cwd=checkout, capture_output=True, text=True)
    (checkout / "params.yaml").unlink()
    doubled = "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    (checkout / "params.yaml").write_text(f"a0: &a0 [1, 1]\n{doubled}")
    done = repro()
    assert done.returncode != 0
    assert done.stderr.startswith("error: params.yaml: has an alias")


def test_make_clean_leaves_a_checkout_alone_in_which_a_command_runs(checkout, start):
    (checkout / "mlflow.db").touch()
    port = free_port()
    ui = start(sys.executable, "-m", "pipelines", "ui", str(port))
    wait_until(lambda: ui.said.read_text() or ui.process.poll() is not None, "MLflow is started")
    assert f"error: process {ui.process.pid} works in this checkout" in clean(checkout).stderr
    ui.process.terminate()
    ui.process.wait()
    assert clean(checkout).returncode == 0


@pytest.mark.parametrize("end", ["ends", "is killed"])
def test_of_two_drivers_of_a_stage_the_second_is_told_and_waits(start, end):
    first = start(*ALONE)
    wait_until(first.is_in, "the first is at it")
    second = start(*ALONE)
    words = f"waiting for process {first.process.pid}, which works on the stage train\n"
    wait_until(lambda: second.errors.read_text() == words, "the second is told")
    assert not second.is_in()
    if end == "ends":
        assert first.end() == 0
    else:
        first.process.kill()
    wait_until(second.is_in, "it is the second's turn")
    assert second.end() == 0


def test_a_third_waits_for_the_second_though_the_first_has_removed_the_lock(checkout, start):
    first = start(*ALONE)
    wait_until(first.is_in, "the first is at it")
    second = start(*ALONE)
    wait_until(second.errors.read_text, "the second waits")
    first.end()
    wait_until(second.is_in, "it is the second's turn")
    third = start(*ALONE)
    words = f"waiting for process {second.process.pid}, which works on the stage train\n"
    wait_until(lambda: third.errors.read_text() or third.is_in(), "the third waits, or is in")
    assert third.errors.read_text() == words
    second.end()
    wait_until(third.is_in, "it is the third's turn")
    third.end()
    assert not (checkout / "stage.lock").exists()


def test_elsewhere_than_in_a_checkout_nothing_is_locked(tmp_path):
    outside = Process(tmp_path, *IN_USE)
    wait_until(outside.is_in, "it needs no lock")
    assert outside.end() == 0
    assert not (tmp_path / ".dvc").exists()
