"""MLflow: an experiment for each stage, a run for each cell, and a run for the stage as a whole.

Runs have no parents, since MLflow folds runs that have one, and does not chart folded runs.

The driver owns every run: it creates the database, the experiment and the runs before it fans out, and
workers reach MLflow only through the events that they send to the driver. A cell's digest therefore has
exactly one run, whatever is killed and retried, and SQLite has one writer.
"""

import collections
import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from filelock import FileLock

from pipelines.engine.cells import Cell, CellStore, read_made
from pipelines.engine.disks import disk_full_error, is_disk_full
from pipelines.engine.dvc_files import shared_checkout
from pipelines.engine.processes import is_alive, this_process
from pipelines.engine.provenance import git_commit
from singleshot.errors import UserError, explained
from singleshot.secrets import without_secrets

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

SHOWN_CELLS = "tags.kind = 'cell' and tags.current = 'yes'"
"""Filter of the links: not the run of the stage as a whole, nor cells that the last sweep was without."""
OUR_TAGS = {"kind", "driver", "profile"}
"""Tags of every run that is made here; a person's own run may have the tag `stage`, too."""
LARGEST_ARTIFACT_BYTES = 1_000_000
"""Larger files of a cell (weights, data sets) stay in the stage's outs, under DVC."""
SHOWN = (".html", ".csv", ".png", ".jpg", ".mp4")
"""Suffixes of files that MLflow's pages display, for which the limit is higher."""
LARGEST_SHOWN_BYTES = 20_000_000
METRICS_PER_BATCH, MOST_RUNS, DIGITS = 1000, 50_000, 36  # MLflow's limits; the last of a data set's digest
FLUSH_SECONDS = 5.0
ANSWER_SECONDS = 10
SQLITE = "sqlite:///"
ARTIFACTS = "mlartifacts"
VIEWS: dict[str, dict[str, str]] = {"table": {}, "charts": {"compareRunsMode": "CHART"}}
"""What MLflow's pages show of an experiment, and what their addresses have for it."""
SECONDS = "system/seconds"
"""Metric of a cell's duration. MLflow lists `system/` apart; its own sampler would only watch the driver."""
VARIABLES = {"dvc_stage": "DVC_STAGE", "dvc_experiment": "DVC_EXP_NAME"}
"""Tags, and the variables in which DVC gives their values."""


@dataclasses.dataclass(frozen=True)
class TrackingConfig:
    """Where runs are recorded. The environment variable MLFLOW_TRACKING_URI takes precedence."""

    uri: str = "sqlite:///mlflow.db"
    experiment: str = "singleshot"
    """First part of the experiments' names, e.g. of `singleshot/train`."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What MLflow shows of a stage."""

    about: str
    """What the stage does, in one sentence: MLflow hides the rest until a reader unfolds it."""
    details: str = ""
    """Markdown: the meaning and unit of each metric, and which table has the rest."""
    tables: tuple[Path, ...] = ()
    """CSV files that the stage writes, which become artifacts of the stage's own run."""

    def labels(self, experiment_id: str) -> dict[str, str]:
        """The experiment's kind and description, under the tags that MLflow's pages read."""
        links = (f"[{view}]({address(experiment_id, view)})" for view in VIEWS)
        paragraphs = [f"{self.about} See the {' or the '.join(links)}.", self.details]
        tables = ", and its artifacts are the tables" * bool(self.tables)
        paragraphs.append(f"One run is the stage's own: its name ends in the profile{tables}.")
        return {
            "mlflow.experimentKind": "custom_model_development",
            "mlflow.note.content": "\n\n".join(filter(None, paragraphs)),
        }


def address(experiment_id: str, view: str) -> str:
    """Where MLflow's pages show the current cells of an experiment, as a `table` or as `charts`."""
    query = {"workflowType": "machine_learning", "searchFilter": SHOWN_CELLS} | VIEWS[view]
    return f"#/experiments/{experiment_id}/runs?{urlencode(query, quote_via=quote)}"


def run_name(cell: str) -> str:
    """The name of a cell's run: what differs comes first, as MLflow's pages cut long names."""
    return " ".join(reversed(cell.split("/")))


class Tracker:
    """Records a stage and its cells in MLflow: a :class:`~pipelines.engine.run.Recorder`."""

    def __init__(self, client: "MlflowClient", experiment_id: str, stage: str, profile: str):
        self._client = client
        self._experiment_id = experiment_id
        self._stage = stage
        self._profile = profile
        staged = client.search_runs([experiment_id], f"tags.stage = '{stage}'", max_results=MOST_RUNS)
        found = [run for run in staged if run.data.tags.keys() >= OUR_TAGS]
        self._runs = {run.data.tags["cell"]: run for run in found if "cell" in run.data.tags}
        for run in found:
            if run.info.status == "RUNNING" and not is_alive(run.data.tags["driver"]):
                client.set_terminated(run.info.run_id, "KILLED")
        self.run_id = self._open_sweep(found)
        """The run of the stage as a whole."""
        self._logged: dict[tuple[str, str], int] = {}
        self._buffer: dict[str, list[Metric]] = collections.defaultdict(list)
        self._flushed = time.monotonic()
        self._open: set[str] = set()
        self._swept: set[str] = set()
        """Digests of the cells of this sweep."""

    def reused(self, cells: Sequence[Cell], store: CellStore) -> None:
        """Note how many cells are reused, and make sure that each of them has its run.

        It may lack one if a driver was killed after it had stored the cell, or if the database is younger;
        then the cell's learning curves are lost, but its results are not.
        """
        self._client.set_tag(self.run_id, "cells_reused", str(len(cells)))
        for cell in cells:
            run = self._runs.get(cell.digest)
            if run is None or run.info.status != "FINISHED":
                self.started(cell)
                self.finished(cell, store.path(cell.digest))
            else:
                self._swept.add(cell.digest)
                if run.data.tags["profile"] != self._profile:
                    self._client.set_tag(run.info.run_id, "profile", self._profile)

    def started(self, cell: Cell) -> None:
        """Create the cell's run, or reopen the one that an earlier attempt left."""
        self._swept.add(cell.digest)
        run = self._runs.get(cell.digest)
        if run is None:
            self._runs[cell.digest] = run = self._create(cell)
        else:
            self._reopen(run)
        self._open.add(run.info.run_id)

    def metrics(self, cell: Cell, step: int, values: Mapping[str, float]) -> None:
        """Buffer a cell's metrics, without those of a step that has been recorded before."""
        from mlflow.entities import Metric

        run_id = self._runs[cell.digest].info.run_id
        now = int(time.time() * 1000)
        new = {key: value for key, value in values.items() if step > self._logged.get((run_id, key), -1)}
        self._buffer[run_id] += [Metric(key, float(value), now, step) for key, value in new.items()]
        self._logged.update({(run_id, key): step for key in new})
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def artifact(self, cell: Cell, name: str, file: Path) -> None:
        """Show a file of a cell that is still running, unless it is large."""
        if _is_shown(file):
            folder = str(Path(name).parent) if Path(name).parent.name else None
            self._client.log_artifact(self._runs[cell.digest].info.run_id, str(file), folder)

    def table(self, file: Path) -> None:
        """Attach a table of the whole stage to the stage's run."""
        self._client.log_artifact(self.run_id, str(file))

    def flush(self) -> None:
        """Send the buffered metrics."""
        for run_id, metrics in self._buffer.items():
            for start in range(0, len(metrics), METRICS_PER_BATCH):
                self._client.log_batch(run_id, metrics=metrics[start : start + METRICS_PER_BATCH])
        self._buffer.clear()
        self._flushed = time.monotonic()

    def finished(self, cell: Cell, directory: Path) -> None:
        """Close the run of a finished cell; the small ones of its files become artifacts."""
        run = self._runs[cell.digest]
        for file in sorted(directory.iterdir()):
            if file.is_file() and _is_shown(file):
                self._client.log_artifact(run.info.run_id, str(file))
        made = read_made(directory)
        self.metrics(cell, 0, {SECONDS: made.seconds})
        machine = made.machine.gpu or made.machine.processor
        self._tag(run.info.run_id, {"machine": machine, "mlflow.source.git.commit": made.commit})
        # Last, so that a run that is FINISHED is complete; if the driver is killed before, it is reopened.
        self._terminate(run.info.run_id, "FINISHED")

    def failed(self, cell: Cell, reason: str) -> None:
        """Close the run of a cell that failed, with the traceback as an artifact."""
        if cell.digest in self._runs:
            run_id = self._runs[cell.digest].info.run_id
            self._client.log_text(run_id, reason, "error.txt")
            self._terminate(run_id, "FAILED")

    def close(self, status: str) -> None:
        """End the stage's run, and those of its cells that are still open."""
        for run_id in self._open.copy():
            self._terminate(run_id, status)
        for digest, run in self._runs.items() if status == "FINISHED" else ():
            current = "yes" if digest in self._swept else "no"  # charts average the current ones
            if run.data.tags.get("current") != current:
                self._client.set_tag(run.info.run_id, "current", current)
        self._client.set_terminated(self.run_id, status)

    def _terminate(self, run_id: str, status: str) -> None:
        self.flush()
        self._client.set_terminated(run_id, status)
        self._open.discard(run_id)

    def _create(self, cell: Cell) -> "Run":
        import pandas
        from mlflow.entities import Dataset, DatasetInput, Param

        shown = {key: without_secrets(value) for key, value in cell.tags.items()}
        tags = {**self._common_tags(), **shown, "kind": "cell", "cell": cell.digest, "current": "yes"}
        run = self._client.create_run(self._experiment_id, tags=tags, run_name=run_name(cell.name))
        (params,) = pandas.json_normalize(dataclasses.asdict(cell.params)).to_dict("records")
        shown_params = [Param(key, without_secrets(str(value))) for key, value in params.items()]
        self._client.log_batch(run.info.run_id, params=shown_params)
        inputs = [
            Dataset(name, cell.identity["inputs"][name][:DIGITS], "local", json.dumps({"uri": str(path)}))
            for name, path in cell.inputs.items()
        ]
        if inputs:
            self._client.log_inputs(run.info.run_id, [DatasetInput(each) for each in inputs])
        return run

    def _reopen(self, run: "Run") -> None:
        run_id = run.info.run_id
        self.flush()  # the last recorded step is queried next
        for key in run.data.metrics:
            history = self._client.get_metric_history(run_id, key)
            self._logged[run_id, key] = max(metric.step for metric in history)
        self._resume(run_id)

    def _open_sweep(self, found: "Sequence[Run]") -> str:
        """The run of this stage and profile, which every `dvc repro` reopens."""
        for run in found:
            if run.data.tags["kind"] == "stage" and run.data.tags["profile"] == self._profile:
                self._resume(run.info.run_id)
                return run.info.run_id
        note = "The stage as a whole: tables of all its cells are among the artifacts."
        tags = {**self._common_tags(), "kind": "stage", "mlflow.note.content": note}
        name = f"{self._stage} ({self._profile})"
        return self._client.create_run(self._experiment_id, tags=tags, run_name=name).info.run_id

    def _resume(self, run_id: str) -> None:
        self._client.update_run(run_id, status="RUNNING")
        self._tag(run_id, self._common_tags())

    def _tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def _common_tags(self) -> dict[str, str]:
        return {
            "stage": self._stage,
            "profile": self._profile,
            "driver": this_process(),
            "mlflow.source.name": f"dvc repro {os.environ.get('DVC_STAGE', self._stage)}",
            "mlflow.source.git.commit": git_commit(),
        } | {tag: os.environ[name] for tag, name in VARIABLES.items() if name in os.environ}


@contextlib.contextmanager
def tracking(
    config: TrackingConfig, stage: str, profile: str, experiment: Experiment | None = None
) -> Iterator[Tracker]:
    """Open MLflow for a stage, whose runs end with it: FINISHED, FAILED or, when interrupted, KILLED.

    `experiment` describes the stage in MLflow.

    Raises:
        UserError: the tracking server or database cannot be used.
    """
    with mlflow_client(config) as (client, uri):
        experiment_id = _open_experiment(client, config, uri, stage, experiment)
        tracker = Tracker(client, experiment_id, stage, profile)
        try:
            yield tracker
        except _errors():
            raise  # the next driver closes the runs, when MLflow answers again
        except KeyboardInterrupt:
            tracker.close("KILLED")
            raise
        except BaseException:
            tracker.close("FAILED")
            raise
        else:
            tracker.close("FINISHED")


def _errors() -> tuple[type[Exception], ...]:
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, RequestException, SQLAlchemyError


@contextlib.contextmanager
def _as_user_error(uri: str) -> Iterator[None]:
    try:
        yield
    except _errors() as error:
        if (database := database_file(uri)) and is_disk_full(error):
            raise disk_full_error(error, database) from error
        # SQLAlchemy says in a line of its own, before the database's words, when it sent the statement.
        lines = str(error).splitlines()
        reason = next(line for line in lines if not line.startswith("(raised as a result"))
        raise UserError(
            f"MLflow at {_shown(uri)}: {reason}; finished cells are kept; see `python -m pipelines doctor`"
        ) from error


def _shown(uri: str) -> str:
    return without_secrets(uri.replace(" ", "%20"))  # which passwords of databases may have


def tracking_uri(config: TrackingConfig) -> str:
    """The address at which runs are recorded."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or config.uri
    path = uri.removeprefix(SQLITE)
    if uri.startswith(SQLITE) and not Path(path).is_absolute():
        return f"{SQLITE}{shared_checkout() / path}"
    return uri


def check_answers(uri: str) -> None:
    """Connect once to a server or database: MLflow itself would try for two minutes.

    Raises:
        RequestException, SQLAlchemyError: nothing answers within ten seconds, or it isn't a database.
        ImportError: the database's driver is not installed.
    """
    import requests
    import sqlalchemy

    if uri.lower().startswith(("http://", "https://")):
        # A wrong certificate is an answer, too; MLflow's settings decide about it.
        with contextlib.suppress(requests.exceptions.SSLError):
            requests.get(uri, timeout=ANSWER_SECONDS, stream=True).close()
    elif not uri.startswith("databricks"):
        engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            sqlalchemy.inspect(connection).has_table("experiments")


def database_file(uri: str) -> Path | None:
    """The file of an SQLite address, which may end with options; None for any other address."""
    return Path(uri.removeprefix(SQLITE).partition("?")[0]) if uri.startswith(SQLITE) else None


@contextlib.contextmanager
def mlflow_client(config: TrackingConfig) -> "Iterator[tuple[MlflowClient, str]]":
    """A client of MLflow, and the address that it uses.

    Raises:
        UserError: the server or database cannot be used, now or within the context.
    """
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    # An unreachable server is reported after some ten seconds rather than after minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    os.environ.setdefault("PGCONNECT_TIMEOUT", "10")
    import mlflow

    # Otherwise MLflow logs every migration of a database that it creates, and tracebacks of what it raises.
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db").setLevel(logging.CRITICAL)
    uri = tracking_uri(config)
    with _as_user_error(uri):
        # An ImportError if the database's driver is missing.
        with explained(
            f"MLflow at {_shown(uri)}", "see `python -m pipelines doctor`", (OSError, ImportError)
        ):
            check_answers(uri)
            # MLflow makes a new database in steps, in which two processes at once would disturb each other.
            database = database_file(uri)
            with FileLock(f"{database}.lock") if database else contextlib.nullcontext():
                client = mlflow.MlflowClient(tracking_uri=uri)
            given = os.environ.get("MLFLOW_TRACKING_URI")
            mlflow.set_tracking_uri(uri)  # MLflow looks there for the models of a registered version
            if given is None:  # MLflow sets the variable, which would go before the configuration from now on
                os.environ.pop("MLFLOW_TRACKING_URI", None)
        yield client, uri


def experiment_name(config: TrackingConfig, stage: str) -> str:
    """The name of a stage's experiment."""
    return f"{config.experiment}/{stage}"


def _open_experiment(
    client: "MlflowClient", config: TrackingConfig, uri: str, stage: str, shown: Experiment | None
) -> str:
    """The experiment of a stage. It is described when it is made: a person may write something else later."""
    from mlflow.entities import LifecycleStage
    from mlflow.exceptions import MlflowException

    name = experiment_name(config, stage)
    # A server has its own place for artifacts; with SQLite, `mlartifacts/` beside the database.
    location = (file.resolve().parent / ARTIFACTS).as_uri() if (file := database_file(uri)) else None
    experiment = client.get_experiment_by_name(name)
    at = experiment.artifact_location if experiment else ""
    if experiment and location not in (None, at) and at.startswith("file://") and at.endswith(ARTIFACTS):
        # The checkout was moved or copied, and MLflow would write where it was: addresses are absolute.
        client.rename_experiment(experiment.experiment_id, f"{name} (moved, {experiment.experiment_id})")
        experiment = None
    if experiment is None:
        try:
            made = client.create_experiment(name, artifact_location=location)
            for key, value in shown.labels(made).items() if shown else ():
                client.set_experiment_tag(made, key, value)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another driver was first
                raise
        experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    if experiment.lifecycle_stage == LifecycleStage.DELETED:
        raise UserError(
            f"MLflow at {uri}: the experiment {name} was deleted; restore it: MLFLOW_TRACKING_URI={uri} "
            f"mlflow experiments restore --experiment-id {experiment.experiment_id}"
        )
    return experiment.experiment_id


def _is_shown(file: Path) -> bool:
    largest = LARGEST_SHOWN_BYTES if file.suffix in SHOWN else LARGEST_ARTIFACT_BYTES
    return file.stat().st_size <= largest
