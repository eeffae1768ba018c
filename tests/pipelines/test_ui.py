import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.cli import ui as mlflow_ui
from pipelines.cli.ui import serve
from tasks.errors import UserError


@pytest.fixture
def taken():
    """A port that something listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def executed(monkeypatch):
    """The command that this process would have become."""
    commands = []
    monkeypatch.setattr(os, "execv", lambda _, command: commands.append(command))
    return commands


def test_a_database_that_is_not_there_is_told(tmp_path, executed):
    with pytest.raises(UserError, match=r"mlflow\.db: no such file; `make repro` records"):
        serve(f"sqlite:///{tmp_path / 'mlflow.db'}", 5000)
    assert not executed


def test_a_port_that_is_taken_is_told_with_another(tmp_path, taken, executed):
    (tmp_path / "mlflow.db").touch()
    with pytest.raises(UserError, match=rf"port {taken} is taken; .* make ui PORT={taken + 1}"):
        serve(f"sqlite:///{tmp_path / 'mlflow.db'}", taken)
    assert not executed


def test_a_server_that_has_the_runs_is_told(executed, capsys):
    serve("http://mlflow:5000/", 5000)
    assert "http://mlflow:5000/#/experiments;" in capsys.readouterr().out
    assert not executed


def test_the_database_is_served_where_it_says(tmp_path, executed, capsys):
    (tmp_path / "mlflow.db").touch()
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    serve(uri, port)
    assert f"http://localhost:{port}/#/experiments" in capsys.readouterr().out
    (command,) = executed
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"]
    assert command[command.index("--backend-store-uri") + 1] == uri
    assert command[command.index("--port") + 1] == str(port)


@pytest.mark.parametrize("port", ["", "http", "0", "65536"])
def test_what_is_no_port_is_one_line(port):
    with pytest.raises(SystemExit) as failure:
        mlflow_ui.main(port)
    assert str(failure.value) == f"error: PORT={port}: not a port; give a number from 1 to 65535"


def test_make_ui_hands_on_the_port():
    makefile = Path(__file__).parents[2] / "Makefile"
    shown = subprocess.run(
        ["make", "--no-print-directory", "-n", "-f", makefile, "-o", ".venv/.installed", "ui", "PORT=5123"],
        capture_output=True,
        text=True,
        check=True,
        cwd=makefile.parent,
    )
    assert shown.stdout.splitlines()[-1] == "python -m pipelines.cli.ui 5123"
