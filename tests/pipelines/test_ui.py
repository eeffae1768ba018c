"""What `python -m pipelines ui` refuses; tests/end_to_end/test_mlflow_ui.py opens its pages."""

import shutil
import socket
from pathlib import Path

import pytest
from checkouts import ROOT
from ports import free_port

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
