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
from singleshot.secrets import address_without_secrets, without_secrets

SECRET = "wxyzzy"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"postgresql://me:{SECRET}@host:5432/db", "postgresql://***@host:5432/db"),
        (f"(https://{SECRET}@host/a), 'http://b/c'", "(https://***@host/a), 'http://b/c'"),
        (f"s3://key:{SECRET}@bucket", "s3://***@bucket"),
        (
            f"https://h/a.zip?part=1&X-Amz-Signature={SECRET}&to=2",
            "https://h/a.zip?part=1&X-Amz-Signature=***&to=2",
        ),
        (f"https://h/?sig={SECRET}%2Bab==", "https://h/?sig=***"),
        (f'{{"url": "https://h/?TOKEN={SECRET}"}}', '{"url": "https://h/?TOKEN=***"}'),
        (f"http://me:a/b'\"{SECRET}@host/a: down", "http://***@host/a: down"),
        (
            f"mssql:///?odbc_connect=UID%3Dme%3BPWD%3D{SECRET}%3BX%3D2",
            "mssql:///?odbc_connect=UID%3Dme%3BPWD%3D***%3BX%3D2",
        ),
        (f"https://h/#access_token={SECRET}&b=1", "https://h/#access_token=***&b=1"),
        (f'https://h/?jwt="{SECRET} {SECRET}"', "https://h/?jwt=***"),
        (f"host=h user=me password={SECRET} dbname=runs", "host=h user=me password=*** dbname=runs"),
        (f"mysql://u:{SECRET}@{SECRET}@h/d, https://me@{SECRET}@h", "mysql://***@h/d, https://***@h"),
        (f"PGPASSWORD={SECRET} AWS_SECRET_ACCESS_KEY={SECRET}", "PGPASSWORD=*** AWS_SECRET_ACCESS_KEY=***"),
        (f"curl -H 'Authorization: Basic {SECRET}'", "curl -H 'Authorization: ***'"),
        (f"a Bearer {SECRET}.{SECRET} was refused", "a Bearer *** was refused"),
        (f"token: {SECRET} --api-key {SECRET}", "token: *** --api-key ***"),
        (f"X;SharedAccessSignature={SECRET}&b", "X;SharedAccessSignature=***&b"),
        (f'{{"password": "{SECRET}", "b": 1}}', '{"password": "***", "b": 1}'),
        ('{"a": "no token: ", "token": [1], "keys": "b"}', '{"a": "no token: ", "token": [1], "keys": "b"}'),
        (
            "a password is asked for; max_tokens=5 policy=snip",
            "a password is asked for; max_tokens=5 policy=snip",
        ),
        ('{"a": "http://h:b", "c": "me@host"}', '{"a": "http://h:b", "c": "me@host"}'),
        ("http://h:5000/b@2x.png, sqlite:///a@b.db", "http://h:5000/b@2x.png, sqlite:///a@b.db"),
        ("me@host: a/b@2x.png?size=3", "me@host: a/b@2x.png?size=3"),
    ],
)
def test_what_is_shown_of_an_address(text, shown):
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    "part", ["%3b", ";pass", "//a:", "//@", "token ", "a=", 'key="', "?key=&", "bearer "]
)
def test_a_long_line_takes_no_long_time(part):
    """It took 18 s for 20 kB, as a pattern went through the line for each of its parts."""
    started = time.process_time()
    without_secrets(part * (200_000 // len(part)) + "@")
    assert time.process_time() - started < 5


def test_the_password_of_an_address_alone_may_hold_blanks():
    assert address_without_secrets(f"postgresql://me:a {SECRET}@host/db") == "postgresql://***@host/db"


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
    assert manifest["params"] == {"url": "https://***@host/a?sig=***"}
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
