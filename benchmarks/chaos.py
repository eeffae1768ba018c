"""Damage done by random kills: `python -m benchmarks.chaos --kills 100 --seed 0`, on this machine alone.

A small sweep of agents and a style is trained in copies of this checkout, in turn on the executor `local`,
on Ray that the sweep starts itself, and on a Ray cluster of two nodes, with cells in a folder and on S3
(moto's), and with MLflow on a server. After each sweep, a video is stylised. At random moments, a process
that takes part is killed or stopped for a while, a network connection is cut, the disk is full, or the power
is cut: all processes are killed, and the run goes on with what its disk, an ext4 image, had received by
then. Whatever has ended is started again, after files of DVC's are mended, until all is done. Then files are
compared with those of an undisturbed run.
"""

import argparse
import contextlib
import functools
import io
import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.command import positive, run_main
from benchmarks.paired import heading, table
from pipelines.engine.cells import damage
from pipelines.engine.processes import ends_with_its_parents

sys.path.append(str(Path(__file__).parents[1] / "tests/support"))  # for benchmarks.chaos_services, too
from checkouts import BC_ON_TWO_SEEDS, Checkout, cleaned
from object_store import BUCKET, Objects, s3_server
from odd_videos import make_video
from waiting import PATIENCE_S

from benchmarks.chaos_services import PAUSE_S, Cluster, Disk, Services, fill, small_disk

CONFIGURATION = (
    *BC_ON_TWO_SEEDS,
    "offline_rl.sweep.sparsities=[0,0.95]",
    "offline_rl.training.bc.updates=100",
    "offline_rl.training.bc.eval_every=25",
    "offline_rl.training.bc.checkpoint_every=10",
    "style.training.johnson.batches=8",
    "style.training.johnson.checkpoint_every=2",
)
SWEEP = ("dvc", "repro", "agents", "styles")
STYLIZED = "stylized"
VIDEO = tuple(f"singleshot stylize --style waves films --runtime torch --output {STYLIZED}".split())
"""With PyTorch only: the runtimes that `stylize` chooses from give different bits, and those of onnxruntime
differ now and then."""
KILLS_A_SWEEP, KILLS_A_VIDEO = 5, 2
EXECUTORS = ("local", "ray", "cluster")
"""`ray` is started by the sweep itself; `cluster` has two nodes."""
QUIET = 0.25
"""Longest time between two disturbances of a live driver, as a fraction of the undisturbed sweep's time."""
LIVES_S = 30.0
"""Seconds after the end of a run after which none of its processes may be alive."""
STUCK_S = 1200.0
"""Seconds after which a run that is no longer disturbed counts as stuck."""
MOST_STARTS = 5
"""Most starts in a row without a disturbance: a run that ends by itself each time is stuck, too."""


@dataclass
class Tally:
    """Counts; all but the first two should be 0."""

    runs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    computed_again: int = 0
    """Number of finished cells that were computed again."""
    alive: list[str] = field(default_factory=list)
    """Processes that were alive some time after their run had ended."""
    runs_too_many: int = 0
    """Number of runs in MLflow beyond one per cell, or not FINISHED in the end."""
    mended: Counter[str] = field(default_factory=Counter)
    """DVC's files that were cut off, which was mended before the next start; no fault of this project's."""
    half_written: list[str] = field(default_factory=list)
    """Files beside finished cells or videos, and files that differ from their cell's manifest."""
    unlike: list[str] = field(default_factory=list)
    """Files that differ from those of the undisturbed run."""
    failures: list[str] = field(default_factory=list)
    """Last output of runs that neither were killed nor ended with a line for the user."""

    def counts(self) -> dict[str, int]:
        """Each count by its name in the table."""
        return {
            "finished cells computed again": self.computed_again,
            f"processes alive {LIVES_S:.0f} s after an end": len(self.alive),
            "runs in MLflow beyond one a cell, or not FINISHED": self.runs_too_many,
            "half-written files": len(self.half_written),
            "files unlike the undisturbed run's": len(self.unlike),
            "runs that ended in a traceback, or never": len(self.failures),
        }


class Run:
    """A command in a checkout of its own, which is started again until it succeeds."""

    def __init__(self, checkout: Checkout, command: tuple[str, ...], environment: dict[str, str]):
        self.checkout, self.command, self.environment = checkout, command, environment
        self.made: dict[str, Any] = {}
        """The entry `made` of each finished cell's manifest, which changes if the cell is computed again."""
        self.again = 0

    def start(self) -> None:
        """Start the command."""
        self.note()
        self.process = self.checkout.start(*self.command, **self.environment)

    def mend(self) -> list[str]:
        """Mend DVC's files, as `make repro` does; the names of those that were damaged."""
        command = ["-m", "pipelines.engine.dvc_files"]
        done = self.checkout.run(sys.executable, *command)
        return re.findall(r"^mended: ([^ :]+)", done, re.M)

    def cut_power(self, disk: Disk) -> None:
        """End all processes at once, and go on with what the disk has received by now."""
        processes = self.checkout.processes()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            if number == signal.SIGSTOP:
                disk.keep()
        self.process.wait(PATIENCE_S)  # before psutil does, or its status would be lost, and read as 0
        psutil.wait_procs(processes, PATIENCE_S)
        disk.go_back()

    def note(self) -> None:
        """Count the finished cells that were computed again since the last call."""
        found = {}
        for path in self.checkout.path.glob("**/cell.json"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                found[path.parent.name] = json.loads(path.read_bytes())["made"]
        self.again += sum(found.get(digest, made) != made for digest, made in self.made.items())
        self.made |= found

    def driver(self) -> psutil.Process | None:
        """The process that computes or distributes cells."""
        return self.checkout.process("python -m pipelines ") or self.checkout.process(" ".join(VIDEO))

    def dvc(self) -> psutil.Process | None:
        """The process that was started, which is DVC for a sweep."""
        return None if self.has_ended() else psutil.Process(self.process.pid)

    def has_ended(self) -> bool:
        """Whether the command has ended, with success or not."""
        return self.process.poll() is not None

    def is_done(self) -> bool:
        """Whether it succeeded, or had announced the finished video before it was killed."""
        return self.process.returncode == 0 or self.checkout.output.endswith(f"{STYLIZED}/clip.mp4\n")

    def lives_for(self, seconds: float) -> bool:
        """Whether it still runs `seconds` after its driver has started."""
        while not self.has_ended() and self.driver() is None:
            time.sleep(0.2)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return not self.has_ended()

    def left_alive(self, cluster: Cluster | None) -> list[str]:
        """Command lines of the processes that are alive some time after it ended."""
        deadline = time.monotonic() + LIVES_S
        while (alive := [*self.checkout.processes(), *_workers(cluster)]) and time.monotonic() < deadline:
            time.sleep(0.5)
        self.note()
        return [_command_line(process) for process in alive]


def _workers(cluster: Cluster | None) -> list[psutil.Process]:
    worker = cluster.worker() if cluster else None
    return [worker] if worker else []


def _command_line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {' '.join(process.cmdline())}"
    return f"{process.pid}, which has ended since"


Disturb = Callable[[], bool]
"""A function that does harm, and returns whether it found a target."""


def disturbances(
    run: Run, services: Services, cluster: Cluster | None, disk: Disk | None
) -> dict[str, Disturb]:
    """All disturbances that can happen to a run, by name."""
    targets: dict[str, Callable[[], list[psutil.Process | None]]] = {"driver": lambda: [run.driver()]}
    others: dict[str, Callable[[], object]] = {}
    if os.geteuid() == 0:
        others["disk: full for a while"] = lambda: fill(run.checkout.path)
    if disk:
        others["power: cut"] = lambda: run.cut_power(disk)
    if run.command == SWEEP:
        targets |= {"dvc": lambda: [run.dvc()], "MLflow": lambda: [*services.mlflow_server.processes()]}
        others["MLflow: network drops"] = services.mlflow.drop
    if "SINGLESHOT_CELLS" in run.environment:
        others["S3: network drops"] = services.s3.drop
    targets |= _parts_of(cluster) if cluster else _own_ray(run)
    signals = {
        f"{name}: {how}": _sends(find, number)
        for name, find in targets.items()
        for how, number in SIGNALS.items()
    }
    return signals | {name: _does(action) for name, action in others.items()}


SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGSTOP for a while": signal.SIGSTOP}


def _parts_of(cluster: Cluster) -> dict[str, Callable[[], list[psutil.Process | None]]]:
    return {
        "worker": lambda: [cluster.worker()],
        "raylet": lambda: [cluster.node.find("raylet")],
        "driver's raylet": lambda: [cluster.head.find("raylet")],
        "GCS": lambda: [cluster.head.find("gcs_server")],
    }


def _own_ray(run: Run) -> dict[str, Callable[[], list[psutil.Process | None]]]:
    """The parts of the Ray that a sweep starts itself, while it runs."""

    def find(name: str) -> list[psutil.Process | None]:
        found = (process for process in run.checkout.processes() if process.name() == name)
        return [next(found, None)]

    names = {"own raylet": "raylet", "own GCS": "gcs_server"}
    return {part: functools.partial(find, name) for part, name in names.items()}


def _sends(find: Callable[[], list[psutil.Process | None]], number: int) -> Disturb:
    def disturb() -> bool:
        found = [process for process in find() if process]
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if number == signal.SIGSTOP and found:
            time.sleep(PAUSE_S)
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()
        return bool(found)

    return disturb


def _does(action: Callable[[], object]) -> Disturb:
    def disturb() -> bool:
        action()
        return True

    return disturb


class Chaos:
    """Runs that are disturbed, and the counts of the consequences."""

    def __init__(self, root: Path, services: Services, seed: int, executors: list[str]):
        self.tally = Tally()
        self._root, self._services, self._executors = root, services, executors
        self._chance = random.Random(seed)
        say("inputs, and a run that nobody disturbs")
        self._prepared = Checkout.of_working_tree(root / "prepared")
        self._prepared.compose(*CONFIGURATION, "executor=local")
        self._prepared.repro("data", "pictures")
        (self._prepared.path / "films").mkdir()
        make_video(self._prepared.path / "films/clip.mp4", frames=480, size=(320, 240))
        self._undisturbed = self._prepared.copy(root / "undisturbed")
        started = time.monotonic()
        self._undisturbed.run(*SWEEP)
        self._quiet_s = QUIET * (time.monotonic() - started)
        self._results = self._undisturbed.results()
        say(f"that took {self._quiet_s / QUIET:.0f} s; now runs are disturbed")

    @functools.cached_property
    def _video(self) -> Mapping[str, bytes]:
        """The files of a film that was stylised undisturbed."""
        self._undisturbed.run(*VIDEO)
        files = self._undisturbed.files(STYLIZED)
        shutil.rmtree(self._undisturbed.path / STYLIZED)
        return files

    def disturb(self, kills: int) -> None:
        """Disturb run after run, until `kills` disturbances have hit."""
        while (missing := kills - self.tally.kills.total()) > 0:
            turn, index = divmod(self.tally.runs // 2, len(self._executors))
            executor = self._executors[index]
            if self.tally.runs % 2:
                self._disturb_video(executor, min(KILLS_A_VIDEO, missing))
            else:
                on_s3 = (turn + index) % 2 == 1
                self._disturb_sweep(executor, on_s3, min(KILLS_A_SWEEP, missing))
            self.tally.runs += 1
            say(f"{self.tally.kills.total()} kills: {json.dumps(self.tally.counts())}")

    def _disturb_sweep(self, executor: str, on_s3: bool, most: int) -> None:
        name, services = f"run-{self.tally.runs}", self._services
        say(f"{name}: a sweep on {executor}, cells {'on S3' if on_s3 else 'in a folder'}")
        environment = {"MLFLOW_TRACKING_URI": services.mlflow.address}
        if on_s3:
            environment["AWS_ENDPOINT_URL"] = services.s3.address
            environment["SINGLESHOT_CELLS"] = f"s3://{BUCKET}/{name}"
        with self._copy(self._prepared, name, executor) as checkout:
            run = self._to_its_end(Run(checkout, SWEEP, environment), executor, most)
            self._compare(self._results, checkout.results())
            self.tally.half_written += _half_written(checkout.path / ".cells")
            self.tally.runs_too_many += _runs_too_many(services.mlflow.address, name, run.made)
            if on_s3:
                self.tally.half_written += _half_written_on_s3(name)

    def _disturb_video(self, executor: str, most: int) -> None:
        name, wanted = f"run-{self.tally.runs}", self._video
        say(f"{name}: a video on {executor}")
        with self._copy(self._undisturbed, name, executor) as checkout:
            self._to_its_end(Run(checkout, VIDEO, {}), executor, most)
            found = checkout.files(STYLIZED)
            self._compare(wanted, found)
            self.tally.half_written += sorted(found.keys() - wanted.keys())

    @contextlib.contextmanager
    def _copy(self, of: Checkout, name: str, executor: str) -> Iterator[Checkout]:
        """A copy of a checkout, on a small disk of its own if this process may mount one."""
        path = self._root / name
        used = sum(file.stat().st_size for file in of.path.rglob("*") if file.is_file())
        made = small_disk(path, used) if os.geteuid() == 0 else contextlib.nullcontext()
        with made as self._disk, cleaned(Checkout(path)) as checkout:
            shutil.copytree(of.path, path, symlinks=True, dirs_exist_ok=True)
            kind = "local" if executor == "local" else "ray"
            checkout.compose(*CONFIGURATION, f"executor={kind}", f"tracking.experiment={name}")
            yield checkout
        shutil.rmtree(path)

    def _to_its_end(self, run: Run, executor: str, most: int) -> Run:
        """Disturb a run up to `most` times, and start it again whenever it ends before it is done."""
        cluster = self._services.cluster if executor == "cluster" else None
        if cluster:
            run.environment["RAY_ADDRESS"] = cluster.address
        kinds = disturbances(run, self._services, cluster, self._disk)
        run.start()
        hits = ends = 0
        while True:
            if hits < most and run.lives_for(self._chance.uniform(0, self._quiet_s)):
                name = self._rarely_hit(sorted(kinds))
                if kinds[name]():
                    hits, ends = hits + 1, 0
                    self.tally.kills[name] += 1
                    say(f"{name} ({hits})")
                    time.sleep(PAUSE_S)
                    self._services.mend()
                continue
            self._wait_for(run)
            ends += 1
            alive = run.left_alive(cluster)
            self.tally.alive += alive
            say(f"ended with {run.process.returncode}: {run.checkout.output[-300:]!r} {alive or ''}")
            if run.is_done():
                self.tally.computed_again += run.again
                return run
            if ends > MOST_STARTS:
                self.tally.failures.append(f"never: {run.checkout.output[-1000:]}")
                return run
            run.checkout.kill_all()
            self._services.mend()
            self.tally.mended.update(run.mend())
            run.start()

    def _rarely_hit(self, kinds: list[str]) -> str:
        """One kind at random, preferably one that has hit less often: a Ray cluster alone has 24 kinds."""
        (name,) = self._chance.choices(kinds, [4.0 ** -self.tally.kills[kind] for kind in kinds])
        return name

    def _wait_for(self, run: Run) -> None:
        """Wait until it ends, and check its output: a line for the user, not a traceback."""
        try:
            run.process.wait(STUCK_S)
        except subprocess.TimeoutExpired:
            self.tally.failures.append(f"stuck: {run.checkout.output[-1000:]}")
            run.checkout.kill_all()
            run.process.wait(PATIENCE_S)
        output = run.checkout.output
        if "Traceback" in output:
            self.tally.failures.append(output[output.index("Traceback") :][-3000:])

    def _compare(self, wanted: Mapping[str, bytes], found: Mapping[str, bytes]) -> None:
        self.tally.unlike += [name for name, content in wanted.items() if found.get(name) != content]


def _half_written(store: Path) -> list[str]:
    beside = [path for name in ("staging", "checkpoints") for path in (store / name).rglob("*")]
    damaged = [
        manifest for manifest in store.glob("*/cell.json") if damage(manifest.parent, manifest.parent.name)
    ]
    return [str(path) for path in (*beside, *damaged) if path.is_file()]


def _half_written_on_s3(prefix: str) -> list[str]:
    """Checkpoints that are left, and cells that differ from their manifest."""
    objects, wrong = Objects(prefix), []
    for name in objects:
        with tempfile.TemporaryDirectory() as cell, contextlib.suppress(zipfile.BadZipFile):
            zipfile.ZipFile(io.BytesIO(objects[name])).extractall(cell)
            if not name.startswith("checkpoints/") and damage(Path(cell), name.removesuffix(".zip")) is None:
                continue
        wrong.append(name)
    return wrong


def _runs_too_many(address: str, name: str, cells: Mapping[str, Any]) -> int:
    import mlflow

    client = mlflow.MlflowClient(address)
    found = client.search_experiments(filter_string=f"name LIKE '{name}/%'")
    experiments = [experiment.experiment_id for experiment in found]
    runs = client.search_runs(experiments, "tags.kind = 'cell'", max_results=1000)
    unfinished = sum(run.info.status != "FINISHED" for run in runs)
    return unfinished + len(runs) - len({run.data.tags["cell"] for run in runs} & cells.keys())


def say(text: str) -> None:
    """Log progress to stderr."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def show(tally: Tally, seconds: float) -> str:
    """The tables, in Markdown."""
    kills = f"{tally.kills.total()}, in {tally.runs} runs and {seconds / 60:.0f} minutes"
    counted = table(("counted", ""), [("kills", kills), *tally.counts().items()])
    hit = table(("what was hit", "times"), sorted(tally.kills.items()))
    mended = table(("mended before the next start", "times"), sorted(tally.mended.items()))
    details = [*tally.alive, *tally.half_written, *tally.unlike, *tally.failures]
    return "\n\n".join([counted, hit, mended, *(f"```\n{detail}\n```" for detail in details)])


@contextlib.contextmanager
def chaos(seed: int, executors: list[str]) -> Iterator[Chaos]:
    """Prepare the services and an undisturbed run."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # moto logs a line per request
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="token", OMP_NUM_THREADS="1")
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # eight processes that are not needed
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory, s3_server() as s3:
        port = int(s3["AWS_ENDPOINT_URL"].rpartition(":")[2])
        with (
            cleaned(Checkout(Path(directory))),  # of processes that an interrupted run leaves for a moment
            contextlib.closing(Services(Path(directory), port, ray="cluster" in executors)) as services,
        ):
            yield Chaos(Path(directory), services, seed, executors)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=positive(int), default=100, metavar="N", help="in all (default: 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed for what is killed, and when")
    parser.add_argument("--executors", nargs="+", choices=EXECUTORS, default=EXECUTORS)
    given = parser.parse_args()
    started = time.monotonic()
    with (
        contextlib.suppress(KeyboardInterrupt),
        ends_with_its_parents(),
        chaos(given.seed, given.executors) as running,
    ):
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C and SIGTERM end it with the tables so far
            running.disturb(given.kills)
        print(heading("torch", "ray", "mlflow", "dvc"))
        print(show(running.tally, time.monotonic() - started), flush=True)


if __name__ == "__main__":
    run_main(main)
