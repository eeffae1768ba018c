import contextlib
import hashlib
import multiprocessing
import os
import re
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import mlflow
import pytest
import requests
from made import MADE
from toy_tasks.work import SumParams, add_up

from pipelines.engine.cells import Cell
from pipelines.engine.processes import this_process
from pipelines.engine.tracking import SHOWN_CELLS, TrackingConfig, tracking
from pipelines.stages.offline_rl import train_agents
from singleshot.errors import UserError

CELL = Cell(
    "Hopper/sum", add_up, SumParams(1), tags={"environment": "Hopper", "pruner": "snip", "sparsity": "0.95"}
)


@dataclass(frozen=True)
class Inner:
    rate: float


@dataclass(frozen=True)
class Outer:
    inner: Inner
    sizes: tuple[int, ...]


OTHER = Cell("Hopper/other", add_up, Outer(Inner(0.5), (1, 2)))
BROKEN = Cell("broken", add_up, SumParams(9))


@pytest.fixture
def config(empty_database, tmp_path, monkeypatch):
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return TrackingConfig(uri("mlflow.db"))


def uri(name):
    """Absolute: within a process, MLflow keeps the database that it once opened under a name."""
    return f"sqlite:///{Path.cwd() / name}"


def client():
    return mlflow.MlflowClient(uri("mlflow.db"))


def runs(query=""):
    experiments = [experiment.experiment_id for experiment in client().search_experiments()]
    return list(client().search_runs(experiments, query, max_results=5000))


def cell_runs():
    return runs("tags.kind = 'cell'")


def history(key):
    (run,) = cell_runs()
    return [(metric.step, metric.value) for metric in client().get_metric_history(run.info.run_id, key)]


def artifacts(run):
    return {file.path for file in client().list_artifacts(run.info.run_id)}


def finish(tracker, store, cell, **files):
    store.commit(cell, {name: content.encode() for name, content in files.items()}, MADE)
    tracker.finished(cell, store.path(cell.digest))


def test_a_stage_is_an_experiment_and_each_cell_a_run_of_it(config, store, monkeypatch):
    monkeypatch.setenv("DVC_STAGE", "train")
    Path("data.csv").write_text("a", encoding="utf-8")
    fed = replace(OTHER, inputs={"dataset": Path("data.csv")})
    with tracking(config, "train", "smoke") as tracker:
        for cell in (CELL, fed):
            tracker.started(cell)
            finish(tracker, store, cell, result="1")
    (parent,) = runs("tags.kind = 'stage'")
    (run,) = runs(f"tags.cell = '{CELL.digest}'")
    assert len(runs()) == 3
    # Runs below a parent are folded in MLflow's pages, and nothing of them charted.
    assert not any("mlflow.parentRunId" in run.data.tags for run in runs())
    assert {run.info.experiment_id for run in runs()} == {parent.info.experiment_id}
    assert client().get_experiment(parent.info.experiment_id).name == "singleshot/train"
    expected = CELL.tags | {
        "stage": "train",
        "dvc_stage": "train",
        "profile": "smoke",
        "cell": CELL.digest,
        "mlflow.source.git.commit": MADE.commit,
        "machine": MADE.machine.processor,
    }
    assert expected.items() <= run.data.tags.items()
    assert run.info.run_name == "sum Hopper"
    assert run.data.metrics == {"system/seconds": MADE.seconds}
    assert {"start": "1", "fail_at": "None"}.items() <= run.data.params.items()
    (nested,) = runs(f"tags.cell = '{fed.digest}'")
    assert nested.data.params == {"inner.rate": "0.5", "sizes": "(1, 2)"}
    (dataset,) = (given.dataset for given in nested.inputs.dataset_inputs)
    assert (dataset.name, dataset.source) == ("dataset", '{"uri": "data.csv"}')
    assert hashlib.sha256(b"a").hexdigest().startswith(dataset.digest)
    assert {each.info.status for each in runs()} == {"FINISHED"}
    assert "result" in artifacts(run)


def test_steps_replayed_by_the_next_driver_are_recorded_once(config, store):
    with contextlib.suppress(KeyboardInterrupt), tracking(config, "train", "smoke") as tracker:
        tracker.started(CELL)
        for step in (1, 2, 3):
            tracker.metrics(CELL, step, {"sum": step * 10})
        raise KeyboardInterrupt
    with tracking(config, "train", "smoke") as tracker:
        tracker.started(CELL)
        tracker.metrics(CELL, 2, {"sum": 20})
        tracker.started(CELL)  # once more, as its worker was lost
        for step in (2, 3, 4):
            tracker.metrics(CELL, step, {"sum": step * 10})
        finish(tracker, store, CELL)
    assert history("sum") == [(1, 10), (2, 20), (3, 30), (4, 40)]
    assert len(runs()) == 2  # one cell, one stage


def test_a_cell_that_was_kept_just_before_the_driver_died_is_finished_when_it_is_reused(config, store):
    with contextlib.suppress(KeyboardInterrupt), tracking(config, "train", "smoke") as tracker:
        tracker.started(CELL)
        tracker.metrics(CELL, 1, {"sum": 5})
        store.commit(CELL, {"result": b"1"}, MADE)
        raise KeyboardInterrupt
    assert cell_runs()[0].info.status == "KILLED"
    with tracking(config, "train", "smoke") as tracker:
        tracker.reused([CELL], store)
    (run,) = cell_runs()
    assert run.info.status == "FINISHED"
    assert "result" in artifacts(run)
    assert run.data.metrics == {"sum": 5, "system/seconds": MADE.seconds}
    assert runs("tags.kind = 'stage'")[0].data.tags["cells_reused"] == "1"


def test_a_cell_that_is_older_than_the_database_gets_its_run(config, store):
    store.commit(CELL, {"result": b"1"}, MADE)
    for _ in range(2):
        with tracking(config, "train", "smoke") as tracker:
            tracker.reused([CELL], store)
    (run,) = cell_runs()
    assert (run.info.run_name, run.info.status) == ("sum Hopper", "FINISHED")
    assert CELL.tags.items() <= run.data.tags.items()
    assert run.data.params["start"] == "1"
    assert run.data.metrics == {"system/seconds": MADE.seconds}
    assert run.data.tags["mlflow.source.git.commit"] == MADE.commit
    assert artifacts(run) == {"result", "cell.json"}


def test_charts_are_of_the_last_sweep_and_runs_of_the_last_profile(config, store):
    def current():
        return {run.data.tags["cell"] for run in runs(SHOWN_CELLS)}

    with tracking(config, "train", "smoke") as tracker:
        for cell in (CELL, OTHER):
            tracker.started(cell)
            finish(tracker, store, cell)
        assert current() == {CELL.digest, OTHER.digest}
    with tracking(config, "train", "paper") as tracker:
        tracker.reused([CELL], store)
    assert current() == {CELL.digest}
    assert [run.info.run_name for run in runs("tags.profile = 'paper' and tags.kind = 'cell'")] == [
        "sum Hopper"
    ]
    with contextlib.suppress(UserError), tracking(config, "train", "smoke") as tracker:
        tracker.reused([OTHER], store)
        raise UserError("a cell failed")
    assert current() == {CELL.digest}
    with tracking(config, "train", "smoke") as tracker:
        tracker.reused([OTHER], store)
    assert current() == {OTHER.digest}


def test_an_experiment_says_what_it_is_until_someone_says_more(config):
    def experiment():
        return client().get_experiment_by_name("singleshot/train")

    with tracking(config, "train", "smoke", train_agents.experiment):
        pass
    identifier = experiment().experiment_id
    links = re.findall(r"\]\((#/experiments/(\d+)/runs\?[^)]*)\)", experiment().tags["mlflow.note.content"])
    assert [of for _, of in links] == [identifier, identifier]
    client().set_experiment_tag(identifier, "mlflow.note.content", "mine")
    with tracking(config, "train", "smoke", train_agents.experiment):
        pass
    assert experiment().tags["mlflow.note.content"] == "mine"


def test_an_interrupt_closes_every_open_run_and_a_failure_has_its_traceback(config, store):
    with pytest.raises(KeyboardInterrupt), tracking(config, "train", "smoke") as tracker:  # noqa: PT012
        for cell in (CELL, OTHER, BROKEN):
            tracker.started(cell)
        finish(tracker, store, OTHER)
        tracker.metrics(CELL, 1, {"sum": 5})
        tracker.failed(BROKEN, "Traceback: the toy broke")
        raise KeyboardInterrupt
    assert {run.info.run_name: run.info.status for run in runs()} == {
        "sum Hopper": "KILLED",
        "other Hopper": "FINISHED",
        "broken": "FAILED",
        "train (smoke)": "KILLED",
    }
    (run,) = runs(f"tags.cell = '{CELL.digest}'")
    assert run.data.metrics == {"sum": 5}  # what was buffered is kept
    (run,) = runs(f"tags.cell = '{BROKEN.digest}'")
    text = client().download_artifacts(run.info.run_id, "error.txt")
    assert Path(text).read_text(encoding="utf-8") == "Traceback: the toy broke"


def test_only_runs_of_dead_drivers_are_closed(config):
    experiment = client().create_experiment("singleshot/train")
    dead, living, elsewhere = f"{os.uname().nodename}:4194999:1", this_process(), "another:1:1"
    for driver, stage in ((dead, "train"), (living, "train"), (elsewhere, "train"), (dead, "sizes")):
        tags = {"driver": driver, "stage": stage, "kind": "cell", "cell": f"{stage} by {driver}"}
        client().create_run(experiment, tags={**tags, "profile": "paper"})
    client().create_run(experiment, tags={"stage": "train", "kind": "a person's own"})
    with tracking(config, "train", "paper"):
        pass
    assert [run.data.tags["cell"] for run in cell_runs() if run.info.status == "KILLED"] == [
        f"train by {dead}"
    ]


def test_a_moved_or_copied_checkout_records_its_cells_again(store, empty_database, tmp_path, monkeypatch):
    first, second = tmp_path / "a checkout", tmp_path / "renamed"
    first.mkdir()
    shutil.copy(empty_database, first / "mlflow.db")
    monkeypatch.chdir(first)
    with tracking(TrackingConfig(uri("mlflow.db")), "export", "smoke") as tracker:
        tracker.started(CELL)
        tracker.metrics(CELL, 1, {"sum": 5})
        finish(tracker, store, CELL, table="a,b")

    monkeypatch.chdir(tmp_path)
    shutil.copytree(first, second)
    monkeypatch.chdir(second)
    for _ in range(2):
        with tracking(TrackingConfig(uri("mlflow.db")), "export", "smoke") as tracker:
            tracker.reused([CELL], store)
    shutil.rmtree(first)
    old, new = sorted(cell_runs(), key=lambda run: int(run.info.experiment_id))
    names = [client().get_experiment(run.info.experiment_id).name for run in (old, new)]
    assert names == [f"singleshot/export (moved, {old.info.experiment_id})", "singleshot/export"]
    assert old.data.metrics["sum"] == 5
    assert Path(client().download_artifacts(new.info.run_id, "table")).read_text("utf-8") == "a,b"


def test_two_drivers_that_begin_at_once_share_a_new_database(tmp_path):
    forking = multiprocessing.get_context("fork")
    both_are_here = forking.Barrier(2)

    def begin(stage):
        both_are_here.wait()
        with tracking(TrackingConfig(uri=f"sqlite:///{tmp_path}/mlflow.db"), stage, "smoke"):
            pass

    drivers = [forking.Process(target=begin, args=[stage]) for stage in ("agents", "styles")]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert [driver.exitcode for driver in drivers] == [0, 0]


def test_a_deleted_experiment_is_one_line_that_restores_it(config):
    with tracking(config, "train", "smoke"):
        pass
    experiment = client().get_experiment_by_name("singleshot/train")
    client().delete_experiment(experiment.experiment_id)
    with pytest.raises(
        UserError, match=r"singleshot/train was deleted; restore it: MLFLOW_TRACKING_URI="
    ) as told:
        tracking(config, "train", "smoke").__enter__()
    client().restore_experiment(str(told.value).rpartition(" ")[2])
    with tracking(config, "train", "smoke"):
        pass


def test_an_artifact_that_a_server_refuses_is_one_line(config, tmp_path, monkeypatch):
    """A proxy may limit the size of a request; MLflow's client then raises an error of its HTTP library."""

    def refuse(*_, **__):
        raise requests.HTTPError("413 Client Error: Request Entity Too Large")

    monkeypatch.setattr("mlflow.MlflowClient.log_artifact", refuse)
    with (
        pytest.raises(UserError, match=r"^MLflow at .*: 413 .*Too Large; finished cells are kept"),
        tracking(config, "train", "smoke") as tracker,
    ):
        tracker.table(tmp_path / "a.png")


def test_artifacts_are_there_while_a_cell_runs_and_tables_with_the_stage(config, store, tmp_path):
    table = tmp_path / "scores.csv"
    table.write_text("a\n1\n")
    with tracking(config, "train", "smoke") as tracker:
        tracker.started(CELL)
        for name, content in {
            "previews/5.jpg": b"five",
            "6.jpg": b"six",
            "large.bin": bytes(2_000_000),
        }.items():
            tracker.artifact(CELL, name, store.save_artifact(CELL, name, content))
        (run,) = cell_runs()
        assert artifacts(run) == {"previews", "6.jpg"}  # neither weights nor data
        shown = client().list_artifacts(run.info.run_id, "previews")
        assert [file.path for file in shown] == ["previews/5.jpg"]
        tracker.table(table)
        large = "1" * 1_000_001
        finish(tracker, store, CELL, small="1", large=large, **{"index.html": large})
    assert {"small", "index.html", "cell.json"} <= artifacts(run)
    assert "large" not in artifacts(run)
    (parent,) = runs("tags.kind = 'stage'")
    assert artifacts(parent) == {"scores.csv"}


@pytest.mark.parametrize(
    "uri", ["sqlite:////proc/none/runs.db", "sqlite:///{text}", "file:///runs", "notauri"]
)
def test_an_address_of_no_use_is_told_at_once(tmp_path, monkeypatch, uri):
    monkeypatch.chdir(tmp_path)
    Path("text").write_bytes(bytes(range(256)) * 4)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(text=tmp_path / "text"))
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("MLflow tries again"))
    with pytest.raises(UserError, match=r"^MLflow at "), tracking(TrackingConfig(), "t", "smoke"):
        pass
    assert Path("text").read_bytes() == bytes(range(256)) * 4
