"""Copies of this repository in which tests run the real pipeline, as a user does in a clone of theirs."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas
import psutil

ROOT = Path(__file__).parents[2]
MARKER = "SINGLESHOT_TEST"
BC_ON_TWO_SEEDS = (
    "profile=smoke",
    "offline_rl.sweep.algorithms=[bc]",
    "offline_rl.sweep.pruners=[snip]",
    "offline_rl.sweep.seeds=[0,1]",
    "offline_rl.data.transitions=2000",
    "offline_rl.evaluation.episodes=1",
)
"""The beginning of a configuration whose sweep takes seconds."""
BIN = Path(sys.executable).parent


class Checkout:
    """A copy of the working tree, and every process that was started in it."""

    def __init__(self, path: Path):
        self.path = path
        self.marker = uuid.uuid4().hex
        self.logs: list[Path] = []

    @classmethod
    def of_working_tree(cls, path: Path) -> "Checkout":
        """Files that git tracks or would, committed to a repository of their own."""
        listed = _git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        for name in filter(None, listed):
            # Tests are not part of a run, and results of a run here are not part of a clone.
            if (ROOT / name).is_file() and not name.startswith("tests/") and name != "dvc.lock":
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, path / name)
        _git(path, "init", "--quiet")
        _git(path, "add", ".")
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        _git(path, *identity, "commit", "--quiet", "--no-verify", "--message", "Copy")
        return cls(path)

    def clone(self, path: Path) -> "Checkout":
        """The same code, and nothing of its runs."""
        _git(self.path, "clone", "--quiet", str(self.path), str(path))
        return Checkout(path)

    def copy(self, path: Path) -> "Checkout":
        """Everything as it is: cells, MLflow's database, DVC's cache and outs."""
        # A socket, which the last run may not have removed yet, cannot be copied.
        shutil.copytree(self.path, path, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
        return Checkout(path)

    @property
    def environment(self) -> dict[str, str]:
        """A user's: nothing of the tests or of a surrounding DVC, Ray or MLflow reaches the pipeline."""
        foreign = ("DVC_", "RAY_", "MLFLOW_", "GIT_", "PYTHONPATH", "PYTEST_")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        return kept | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "DVC_NO_ANALYTICS": "1",
            MARKER: self.marker,
        }

    def start(self, *command: str, **environment: str) -> subprocess.Popen:
        """Start a command at the head of a process group of its own, its output in :attr:`output`."""
        log = self.path.with_name(f"{self.path.name}-{len(self.logs)}.log")
        self.logs.append(log)
        with log.open("w") as file:
            return subprocess.Popen(
                command,
                cwd=self.path,
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What the last started command has written so far."""
        return self.logs[-1].read_text()

    def run(self, *command: str, expect: int = 0, **environment: str) -> str:
        """Run a command to its end; its output."""
        process = self.start(*command, **environment)
        try:
            status = process.wait()
        finally:
            print(self.output)  # also where the test's time is up
        assert status == expect, f"{' '.join(command)} ended with {status}:\n{self.output}"
        return self.output

    def repro(self, *arguments: str, **options: Any) -> str:
        """`dvc repro`; its output."""
        return self.run("dvc", "repro", *arguments, **options)

    def compose(self, *overrides: str) -> None:
        """Write params.yaml anew."""
        self.run("python", "-m", "pipelines", "params", *overrides)

    def processes(self) -> list[psutil.Process]:
        """Every process alive that was started here, directly or not, with or without its parents.

        Ray's workers overwrite their environment with their title, hence the other two looks.
        """
        ours: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                here = Path(process.cwd()).is_relative_to(self.path)
                if here or process.environ().get(MARKER) == self.marker:
                    ours[process.pid] = process
        for process in list(ours.values()):
            with contextlib.suppress(psutil.Error):
                ours |= {child.pid: child for child in process.children(recursive=True)}
        return list(ours.values())

    def process(self, words: str) -> psutil.Process | None:
        """A process started here whose command line begins with `words`."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if " ".join(process.cmdline()).startswith(words):
                    return process
        return None

    def kill_all(self) -> None:
        """End what still runs here."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)

    def cells(self) -> dict[str, float]:
        """Finished cells in the store, with the time each was made."""
        return {
            manifest.parent.name: manifest.stat().st_mtime
            for manifest in (self.path / ".cells").glob("*/cell.json")
        }

    def files(self, *directories: str) -> dict[str, bytes]:
        """The contents of all files below `directories`."""
        return {
            file.relative_to(self.path).as_posix(): file.read_bytes()
            for directory in directories
            for file in sorted((self.path / directory).rglob("*"))
            if file.is_file() and file.name != ".gitignore"
        }

    def results(self) -> dict[str, bytes]:
        """All that a run leaves for its user, but for when and in what time it was made."""
        results = self.files("data", "models", "results")
        return {name: _without_seconds(name, content) for name, content in results.items()}

    @property
    def mlflow(self) -> Any:
        """A client of the checkout's own database."""
        import mlflow

        return mlflow.MlflowClient(f"sqlite:///{self.path / 'mlflow.db'}")

    def runs(self, **tags: str) -> list[Any]:
        """MLflow's runs with these tags."""
        client = self.mlflow
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        query = " and ".join(f"tags.{key} = '{value}'" for key, value in tags.items())
        return list(client.search_runs(experiments, query, max_results=1000))

    def check_runs(self) -> None:
        """One finished run for each cell in the store, each metric once a step, and no stage left open.

        In a copy of a checkout, experiments begin anew; those of the original have its runs.
        """
        cells = self.runs(kind="cell")
        assert {run.data.tags["cell"] for run in cells} == self.cells().keys()
        assert set(Counter((run.info.experiment_id, run.data.tags["cell"]) for run in cells).values()) == {1}
        assert {run.info.status for run in self.runs()} == {"FINISHED"}
        for run in cells:
            for key in run.data.metrics:
                steps = [metric.step for metric in self.mlflow.get_metric_history(run.info.run_id, key)]
                assert len(steps) == len(set(steps)), f"{run.info.run_name}: {key} twice at a step: {steps}"


def _without_seconds(name: str, content: bytes) -> bytes:
    if name.endswith("deployment/timings.csv"):
        table = pandas.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
        return table[["model", "form", "runtime", "threads", "batch", "size_px", "status"]].to_csv().encode()
    if name.endswith(".csv"):
        table = pandas.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
        kept = [column for column in table.columns if "seconds" not in column]
        return table[kept].to_csv(index=False).encode()
    if name.startswith("results/provenance/"):
        return json.dumps({**json.loads(content), "seconds": None, "first": None, "last": None}).encode()
    if "/gatys/" in name and name.endswith("summary.json"):
        return json.dumps({**json.loads(content), "seconds_per_iteration": None}).encode()
    return content


@contextlib.contextmanager
def cleaned(checkout: Checkout) -> Iterator[Checkout]:
    """The checkout; whatever runs in it at the end is killed, also when a test fails."""
    try:
        yield checkout
    finally:
        checkout.kill_all()


def progress(output: str) -> Mapping[str, tuple[int, int, int]]:
    """By stage, the cells in all, reused and to compute, as a run's output tells them."""
    found = re.findall(r"(\w+) \(\w+\): cells: (\d+) in all, (\d+) reused, (\d+) to compute", output)
    return {stage: (int(total), int(reused), int(missing)) for stage, total, reused, missing in found}


def _git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True, check=True)
    return done.stdout
