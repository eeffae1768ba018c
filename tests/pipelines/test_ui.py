"""`python -m pipelines ui`, with MLflow's real server."""

import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest
from ports import free_port
from waiting import PATIENCE_S, wait_until

from pipelines.cli import ui
from pipelines.cli.ui import serve_runs
from singleshot.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _directory(tmp_path, monkeypatch):
    """A working directory with a configuration, and no database."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def taken():
    """A port that something listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_database_that_is_not_there_is_told(port):
    with pytest.raises(UserError, match=r"mlflow\.db: no such file; `make repro` records"):
        serve_runs(port)


def test_a_port_that_is_taken_is_told_with_another_and_the_database_stays_as_it_is(taken, monkeypatch):
    Path("mlflow.db").touch()
    monkeypatch.setattr(ui, "follow_move", lambda *_: pytest.fail("a command that fails changes nothing"))
    with pytest.raises(UserError, match=rf"port {taken} is taken; .* make ui PORT={taken + 1}"):
        serve_runs(taken)


def test_a_port_that_may_not_be_used_is_not_called_taken(monkeypatch):
    def bind(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    Path("mlflow.db").touch()
    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(UserError, match=r"^port 80 can't be used \(Permission denied\); .* PORT=5001$"):
        serve_runs(80)


def test_a_server_that_has_the_runs_is_told(monkeypatch, port, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000/")
    serve_runs(port)
    assert "http://mlflow:5000/#/experiments?workflowType=machine_learning" in capsys.readouterr().out


@contextlib.contextmanager
def started(port):
    """The command, and the processes below it so far; all are ended at last."""
    with subprocess.Popen(
        [sys.executable, "-m", "pipelines", "ui", "--port", str(port)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as ui:
        try:
            assert f"http://localhost:{port}/#/experiments" in ui.stdout.readline()
            yield ui
        finally:
            for process in (
                [*psutil.Process(ui.pid).children(recursive=True), ui] if ui.poll() is None else []
            ):
                process.kill()


def server_of(ui):
    """MLflow's own process."""
    for child in psutil.Process(ui.pid).children():
        with contextlib.suppress(psutil.Error):
            if "mlflow" in child.cmdline():
                return child
    return None


def test_an_interrupt_ends_the_server_without_a_word(port):
    """While it imports, which takes seconds: each of its processes would print a traceback."""
    Path("mlflow.db").touch()
    with started(port) as ui:
        server = wait_until(lambda: server_of(ui), "MLflow is started")
        os.killpg(ui.pid, signal.SIGINT)  # as a terminal does
        output, _ = ui.communicate(timeout=PATIENCE_S)
        assert (output, ui.returncode) == ("", 0)
        assert not server.is_running()


def test_the_database_is_served_until_the_interrupt(port):
    Path("mlflow.db").touch()
    address = f"http://127.0.0.1:{port}"

    def answers():
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            return answer.status == 200

    with started(port) as ui:
        wait_until(answers, "MLflow answers")
        descendants = psutil.Process(ui.pid).children(recursive=True)
        os.killpg(ui.pid, signal.SIGINT)
        output, _ = ui.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in output
        assert ui.returncode == 0
        assert not psutil.wait_procs(descendants, timeout=PATIENCE_S)[1]


def test_make_ui_hands_on_the_port():
    shown = subprocess.run(
        [
            "make",
            "--no-print-directory",
            "-n",
            "-f",
            ROOT / "Makefile",
            "-o",
            ".venv/.installed",
            "ui",
            "PORT=5123",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert shown.stdout.splitlines()[-1] == "python -m pipelines ui --port 5123"
