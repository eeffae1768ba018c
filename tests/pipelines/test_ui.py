"""`python -m pipelines ui`, with MLflow's real server."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import mlflow
import psutil
import pytest
from checkouts import ROOT
from ports import free_port
from waiting import PATIENCE_S, wait_until

from pipelines.cli.ui import serve_runs
from singleshot.errors import UserError


@pytest.fixture(autouse=True)
def _directory(tmp_path, monkeypatch):
    """A working directory with a configuration, and no database."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)


def test_a_missing_database_and_a_taken_port_are_told():
    with pytest.raises(UserError, match=r"mlflow\.db"):
        serve_runs(free_port())
    Path("mlflow.db").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=f"{port}.*make ui PORT="):
            serve_runs(port)
    assert Path("mlflow.db").read_bytes() == b""


@pytest.mark.slow
def test_runs_are_served_until_the_interrupt(empty_database):
    shutil.copy(empty_database, "mlflow.db")
    identifier = mlflow.MlflowClient(f"sqlite:///{Path('mlflow.db').absolute()}").create_experiment(
        "singleshot/train"
    )
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "pipelines", "ui", "--port", str(port)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as ui:

        def answers():
            assert ui.poll() is None
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200
            except OSError:
                return False

        wait_until(answers, "MLflow answers")
        descendants = psutil.Process(ui.pid).children(recursive=True)
        os.killpg(ui.pid, signal.SIGINT)  # as a terminal does
        output = ui.communicate(timeout=PATIENCE_S)[0]
    assert ui.returncode == 0
    assert "Traceback" not in output
    start = rf"http://localhost:{port}/#/experiments"
    assert re.search(rf"^MLflow: {start} \(choose Model training there, once\)$", output, re.MULTILINE)
    for view in ("table", "charts"):
        assert re.search(rf"{view}: {start}/{identifier}/runs\?\S+", output)
    assert not psutil.wait_procs(descendants, timeout=PATIENCE_S)[1]
