"""Cells on a Ray cluster: an existing one, or a temporary one on this machine.

Workers need the installed dependencies and the network, and nothing else: code travels as Ray's
`working_dir`, inputs and checkpoints through the object store, and metrics, checkpoints and results come back
as events, so no worker reads the driver's disk.
"""

import contextlib
import dataclasses
import logging
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from pipelines.engine.cells import Cell
from pipelines.engine.processes import takes_its_children_along
from pipelines.engine.run import (
    TRANSIENT_RETRIES,
    CellBatch,
    ExecutorConfig,
    LostError,
    OutOfMemoryError,
    Sweep,
    batches,
    checkpoints_of,
    execute,
    first_line,
)
from pipelines.engine.sources import check_packages
from singleshot.errors import UserError, in_a_line

STARTS = 5
"""Number of attempts to start Ray on this machine. Ray gives up after 30 s, but a busy machine may need more
time."""
PATIENCE_S = 30
"""Seconds without news of cells after which it is checked whether Ray's node on this machine still runs."""
STARTUP_TIMEOUTS = ("timed out during startup", "Timed out waiting for file")
"""Parts of the messages of the exceptions that Ray raises when it gives up: a bare one for a node, and a
RuntimeError for the head's port."""
NO_HEALTH_CHECKS = {"RAY_health_check_failure_threshold": str(2**31 - 1)}
"""Variables that turn Ray's health checks off. On one machine, a node that does not answer is only busy: with
60 processes on 2 cores, Ray took it for dead after five checks. Closed connections show that a node has
ended."""
LONGEST_TEMPORARY = 36
"""Longest directory, in bytes, below which the paths of Ray's sockets have the 107 bytes that the system
allows (`ray/session_2026-11-25_14-49-28_123456_1234567/sockets/plasma_store`)."""


class RayExecutor:
    """Computes cells as Ray tasks.

    The driver retries the cells of a lost worker or node from their last checkpoints. Ray's own retries are
    off, as they would start a task with the checkpoint that it was first given.
    """

    def __init__(self, config: ExecutorConfig, gpu: bool):
        import ray

        self.config = config
        self.gpu = gpu
        self.gpus: float = 0
        if gpu and config.device != "cpu":
            there = min(ray.cluster_resources().get("GPU", 0), 1)
            self.gpus = int(there) if config.num_gpus == "auto" else config.num_gpus
        self.inputs: dict[Path, _Input] = {}
        raylets = [child for child in psutil.Process().children() if child.name() == "raylet"]
        self._own_raylet = max(raylets, key=psutil.Process.create_time, default=None)
        self._check_resources()

    def run(self, sweep: Sweep, cells: Sequence[Cell]) -> None:
        """Compute `cells`, which the sweep's store lacks."""
        import ray
        from ray import exceptions

        # Errors that the cell did not cause, and that may not happen again.
        lost = (
            exceptions.WorkerCrashedError,
            exceptions.NodeDiedError,
            exceptions.OutOfMemoryError,
            exceptions.ObjectLostError,
            exceptions.LocalRayletDiedError,
        )
        running: dict[Any, CellBatch] = {}
        ready = batches(cells, sweep.store, self.config.stack_of(cells, self.gpus > 0))
        while True:
            running |= {self._submit(batch, sweep): batch for batch in ready}
            if not running:
                return
            ready = iter(())
            streams, _ = ray.wait(list(running), num_returns=1, timeout=PATIENCE_S, fetch_local=False)
            if not streams:
                self._check_raylet()
                continue
            stream: Any = streams[0]
            batch = running[stream]
            try:
                event: Any = ray.get(next(stream))
            except StopIteration:
                del running[stream]
            except (*lost, exceptions.RayTaskError) as error:
                del running[stream]
                ready = iter(sweep.ended(batch, fault(batch, error)))
            else:
                if isinstance(event, _Started):
                    sweep.started(batch)
                else:
                    sweep.handle(batch, event)

    def _submit(self, batch: CellBatch, sweep: Sweep) -> Any:
        import ray

        inputs = [{name: self._send(path) for name, path in cell.inputs.items()} for cell in batch.cells]
        checkpoints = [state and ray.put(state) for state in checkpoints_of(batch, sweep.store)]
        memory = {"memory": int(self.config.memory_gb * 2**30)} if self.config.memory_gb else {}
        remote = ray.remote(execute_remotely).options(
            num_cpus=self.config.num_cpus,
            num_gpus=self.gpus,
            max_retries=0,
            name=batch.cells[0].name,
            **memory,
        )
        return remote.remote(batch, inputs, checkpoints, self.config, self.gpu)

    def _send(self, path: Path) -> "_Input":
        import ray

        if path not in self.inputs:
            files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
            contents = {str(file.relative_to(path)): ray.put(file.read_bytes()) for file in files}
            self.inputs[path] = _Input(path, contents)
        return self.inputs[path]

    def _check_raylet(self) -> None:
        """Raise a RayError if the node that this process started has ended.

        Cells that ran there have failed by then, but without health checks, Ray takes others for pending.
        """
        from ray import exceptions

        raylet = self._own_raylet
        if raylet and (not raylet.is_running() or raylet.status() == psutil.STATUS_ZOMBIE):
            raise exceptions.LocalRayletDiedError

    def _check_resources(self) -> None:
        """Raise UserError if no node has the resources of a cell: Ray would wait for them for ever."""
        import ray

        memory = (self.config.memory_gb or 0) * 2**30
        wanted = {"CPU": self.config.num_cpus, "GPU": self.gpus, "memory": memory}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
            asked = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items())
            raise UserError(
                f"no Ray node can run a cell: executor asks for {asked} (see `ray status`); lower "
                "executor.num_cpus, num_gpus or memory_gb"
            )


def fault(batch: CellBatch, error: Exception) -> Exception:
    """What the end of a batch's stream means to the sweep."""
    from ray import exceptions

    if isinstance(error, exceptions.RayTaskError):
        known = isinstance(error.cause, UserError | OutOfMemoryError)
        return error.cause if known else error
    # Ray kills a worker when its node's memory runs low, which other processes may have caused.
    last = batch.attempt == TRANSIENT_RETRIES
    if isinstance(error, exceptions.OutOfMemoryError) and (last or len(batch.cells) > 1):
        return OutOfMemoryError(first_line(error))
    return LostError(type(error).__name__)


@dataclasses.dataclass(frozen=True)
class _Started:
    """A worker has begun with a batch."""


@dataclasses.dataclass(frozen=True)
class _Input:
    path: Path
    contents: Mapping[str, Any]
    """Ray objects by path relative to `path`, which is `.` if `path` is a file. Each file is an object of its
    own, as COCO's photos together take 3 GB."""

    def receive(self, directory: Path) -> Path:
        """Write it below `directory`, under its original path, unless it is there already.

        A `..` of the path becomes a directory `up`, or the file would be outside `directory`, where an older
        one may be.
        """
        import ray

        parts = self.path.relative_to(self.path.anchor).parts
        path = directory.joinpath(*("up" if part == ".." else part for part in parts))
        for name, content in self.contents.items():
            file = path / name
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(ray.get(content))
        return path


def execute_remotely(
    batch: CellBatch,
    inputs: Sequence[Mapping[str, _Input]],
    checkpoints: Sequence[Any],
    config: ExecutorConfig,
    gpu: bool,
) -> Iterator[Any]:
    """`execute` on a worker, with inputs from the object store as temporary files."""
    import ray

    # A worker starts in the directory of the code. When Ray unpacks the code for another node on this
    # machine, it replaces that directory with a new one, and the worker's working directory is gone.
    os.chdir("/")
    check_packages(batch.cells[0].identity["packages"])
    yield _Started()
    with tempfile.TemporaryDirectory(prefix="singleshot-") as directory:
        local = [{name: given.receive(Path(directory)) for name, given in files.items()} for files in inputs]
        states = [ref and ray.get(ref) for ref in checkpoints]
        try:
            yield from execute(batch, local, states, config, gpu)
        except UserError as error:
            # The user knows the file by its original path.
            error.args = (str(error).replace(f"{directory}/", ""),)
            raise


@contextlib.contextmanager
def ray_cluster(config: ExecutorConfig) -> Iterator[None]:
    """Join the cluster that RAY_ADDRESS or the configuration names, else a temporary one on this machine.

    Raises:
        UserError: the cluster cannot be reached, or it was lost in the meantime.
    """
    address = cluster_address(config)
    _set_variables(here=address is None)
    import ray

    name = f"Ray cluster {address or 'on this machine'}"
    with contextlib.ExitStack() as joined:
        try:
            if address is None:
                joined.enter_context(_started_here())
            else:
                check_joinable(address)
                # Workers have no checkout: the code is sent to them, and nothing else.
                code = {"working_dir": str(Path.cwd()), "excludes": not_code(Path.cwd())}
                joined.enter_context(_joined(address=address, runtime_env=code))
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise UserError(f"{name}: {error}; `python -m pipelines doctor` says more") from error
        try:
            yield
        except ray.exceptions.RayError as error:
            # An error of the cluster, e.g. a head that was restarted; exceptions of cells don't get here.
            raise UserError(
                f"{name} was lost: {type(error).__name__}; finished cells and checkpoints are kept, "
                "`dvc repro` continues from them"
            ) from error


def _set_variables(here: bool) -> None:
    """Set variables that Ray reads when it is imported; `here` if it is to run only on this machine."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Without this, a task with num_gpus=0 sees every GPU.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    # Set so that a cluster with a token can be joined by host:port, and a local one starts without a warning.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    # The executor's `excludes` are complete; Ray would add to them, with two warnings.
    os.environ["RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES"] = ""
    if here:
        # Ray's processes then listen on 127.0.0.1 alone, as on the systems that the variable names.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        temporary = tempfile.gettempdir()  # to which batch systems give a long name
        os.environ.setdefault("RAY_TMPDIR", temporary if _suits_sockets(temporary) else "/tmp")
        os.environ.update(NO_HEALTH_CHECKS)
        _check_temporary(os.environ["RAY_TMPDIR"])
        if "RAY_AUTH_TOKEN" not in os.environ:
            keep_token()


def _suits_sockets(folder: str) -> bool:
    return len(folder) <= LONGEST_TEMPORARY and folder.isascii()


def _check_temporary(folder: str) -> None:
    if not (_suits_sockets(folder) and os.access(folder, os.W_OK)):
        raise UserError(
            f"RAY_TMPDIR is {folder}; set it to a folder that can be written, whose path has at most "
            f"{LONGEST_TEMPORARY} characters, all ASCII, such as /tmp"
        )


def keep_token() -> None:
    """Keep Ray's token from other users, who may run code with it: Ray lets everybody read the file."""
    try:
        token = Path.home() / ".ray" / "auth_token"
        token.parent.mkdir(exist_ok=True)
        with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        token.chmod(0o600)
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home folder
        fix = "set HOME to a folder of yours, or RAY_AUTH_TOKEN to 64 random hexadecimal digits"
        raise UserError(f"Ray's token can't be kept below HOME ({in_a_line(error)}); {fix}") from error


@contextlib.contextmanager
def _joined(**options: Any) -> Iterator[None]:
    """`ray.init`, but keep the handler of SIGTERM: Ray's would exit before a stage has ended its runs."""
    import ray

    on_sigterm = signal.getsignal(signal.SIGTERM)
    ray.init(logging_level=logging.WARNING, **options)
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        yield
    finally:
        ray.shutdown()


def took_too_long(error: Exception) -> bool:
    """Whether Ray gave up starting because it took too long."""
    return any(message in str(error) for message in STARTUP_TIMEOUTS)


@contextlib.contextmanager
def _started_here() -> Iterator[None]:
    """Ray on this machine, joined by this process; Ray's processes end with this one.

    Raises:
        RuntimeError: it did not start.
    """
    for _ in range(STARTS):
        with takes_its_children_along(), contextlib.ExitStack() as joined:
            try:
                # Without `local`, Ray joins any cluster that it finds here, even one that is ending.
                joined.enter_context(_joined(address="local", include_dashboard=False))
            except Exception as error:
                if not took_too_long(error):
                    raise
                print("Ray did not start within its 30 seconds: starting it again", file=sys.stderr)
                continue
            yield
            return
    raise RuntimeError(f"not started within 30 seconds, {STARTS} times; this machine is too busy")


def cluster_address(config: ExecutorConfig) -> str | None:
    """The cluster to join; None for a temporary one on this machine."""
    return os.environ.get("RAY_ADDRESS") or config.address


def check_joinable(address: str) -> None:
    """Raise ConnectionError, with the fix, if nothing answers at `host:port` or this machine is not a node.

    Ray itself would try for a minute or more.
    """
    if "://" in address:
        # Ray Client has no streaming generators, through which cells report.
        raise ConnectionError("Ray Client is not supported; give the head's host:port, on one of its nodes")
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        return  # `auto`
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ConnectionError(
            f"nothing answers there ({error}); start it (`ray start --head`), or set RAY_ADDRESS, or "
            "executor.address in conf/, to another"
        ) from error
    if not any(process.info["name"] == "raylet" for process in psutil.process_iter(["name"])):
        raise ConnectionError(
            "a driver has to be on a node of its cluster; make this machine one, without cores for cells: "
            f"`ray start --address={address} --num-cpus=0`"
        )


def not_code(root: Path) -> list[str]:
    """Patterns, as in `.gitignore`, of all in a checkout's root except dvc.yaml, Python modules and packages.

    A user's own modules, e.g. of environments, lie there as well. The catalog reads dvc.yaml.
    """
    names = (
        path.name
        for path in root.iterdir()
        if path.suffix != ".py" and path.name != "dvc.yaml" and not (path / "__init__.py").exists()
    )
    return ["/" + re.sub(r"([\[\]*?!#\\ ])", r"\\\1", name) for name in sorted(names)]
