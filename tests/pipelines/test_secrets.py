"""Secrets in addresses: planted in each setting that may have one, and looked for in all that is written."""

import json
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from checkouts import ROOT
from made import MADE
from ports import free_port
from toy_tasks.work import add_up

from pipelines.engine.cells import Cell, CellStore
from pipelines.engine.remote_cells import open_store
from pipelines.engine.run import CellBatch, CellsFailedError, Sweep
from pipelines.engine.tracking import TrackingConfig, tracking
from singleshot.errors import UserError
from singleshot.io.download import local_or_cached
from singleshot.secrets import without_secrets

SECRET = "wxyzzy"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"postgresql://me:{SECRET}@host:5432/db", "postgresql://***@host:5432/db"),
        (f"(https://{SECRET}@host/a), 'http://b/c'", "(https://***@host/a), 'http://b/c'"),
        (f"https://h/a.zip?part=1&X-Amz-Signature={SECRET}; fetch it", "https://h/a.zip?***; fetch it"),
        (f'{{"url": "https://h/?TOKEN={SECRET}", "b": 1}}', '{"url": "https://h/?***", "b": 1}'),
        (f"mssql:///?odbc_connect=UID%3Dme%3BPWD%3D{SECRET}", "mssql:///?***"),
        (f"mysql://u:a/{SECRET}@{SECRET}@h/d, https://me@h", "mysql://***@h/d, https://***@h"),
        *(
            (text, text)
            for text in (
                "line 3: unexpected token: 'else' in params.yaml",
                '{"api_key": "e3b0c44298fc1c14", "signature": "(state, action)"}',
                "http://h:5000/b@2x.png, sqlite:///a@b.db, me@host: a/b@2x.png?size=3",
                "http://localhost:5000/#/experiments/1/runs?searchFilter=tags.kind",
            )
        ),
    ],
)
def test_what_is_shown_of_an_address(text, shown):
    assert without_secrets(text) == shown


@dataclass(frozen=True)
class UrlParams:
    url: str


CELL = Cell(
    "a", add_up, UrlParams(f"https://me:{SECRET}@host/a?sig={SECRET}"), tags={"source": f"s3://{SECRET}@b"}
)


def test_neither_manifest_nor_mlflow_has_it(tmp_path, monkeypatch, empty_database):
    monkeypatch.chdir(tmp_path)
    Path("mlflow.db").write_bytes(empty_database.read_bytes())
    store = CellStore(tmp_path / "cells")
    with tracking(TrackingConfig(), "train", "smoke") as tracker, Sweep([CELL], store, tracker) as sweep:
        tracker.started(CELL)
        store.commit(CELL, {"result.json": b"{}"}, MADE)
        tracker.finished(CELL, store.path(CELL.digest))
        tracker.started(CELL)
        sweep.ended(CellBatch((CELL,)), RuntimeError(f"https://me:{SECRET}@host is down"))
        with pytest.raises(CellsFailedError) as told:
            sweep.raise_failures()
    assert SECRET not in str(told.value)
    assert store.has(CELL)
    manifest = json.loads((store.path(CELL.digest) / "cell.json").read_text())
    assert manifest["params"] == {"url": "https://***@host/a?***"}
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {"mlflow.db", "cell.json", "error.txt"} <= {file.name for file in written}
    assert [file for file in written if SECRET.encode() in file.read_bytes()] == []


@pytest.mark.parametrize("scheme", ["postgresql+psycopg2", "http"])
@pytest.mark.parametrize("answers", [False, None], ids=["down", "frozen"])
def test_a_database_that_does_not_answer_is_one_line_without_retries(monkeypatch, scheme, answers):
    monkeypatch.setattr("pipelines.engine.tracking.ANSWER_SECONDS", 2)
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("MLflow tries again"))
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        port = frozen.getsockname()[1] if answers is None else free_port()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{scheme}://me:{SECRET}@127.0.0.1:{port}/runs")
        shown = rf"MLflow at {re.escape(scheme)}://\*\*\*@127.0.0.1"
        with pytest.raises(UserError, match=shown) as told, tracking(TrackingConfig(), "train", "smoke"):
            pass
    assert SECRET not in str(told.value)
    assert "\n" not in str(told.value)


def test_what_can_not_be_used_or_fetched_is_named_without_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SINGLESHOT_CELLS", f"nowhere://me:{SECRET}@bucket/cells")
    with pytest.raises(UserError, match=r"cells at nowhere://\*\*\*@bucket") as told:
        open_store(tmp_path)
    assert SECRET not in str(told.value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    url = f"http://me:{SECRET}@127.0.0.1:{free_port()}/a.zip?sig={SECRET}"
    with pytest.raises(UserError) as told:
        local_or_cached(None, url, None, "style.photos.path")
    assert "127.0.0.1" in str(told.value)
    assert SECRET not in str(told.value)


def test_no_command_prints_it():
    code = (
        "import sys, typer; import pipelines.__main__ as app\n"
        "@app.app.command()\n"
        "def leak(text: str):\n"
        "    print(text); typer.echo(text); sys.stderr.write(text); raise RuntimeError(text)\n"
        "app.main()"
    )
    command = [sys.executable, "-c", code, "leak", f"https://me:{SECRET}@host/"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.count("https://***@host/") == 2
    assert "RuntimeError: https://***@host/" in done.stderr
    assert SECRET not in done.stdout + done.stderr
