"""The application on this machine: processes that accept from one socket, each replaced if it dies."""

import contextlib
import functools
import math
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker

from fastapi import FastAPI
from uvicorn import Config
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess

from pipelines.config.serving import ServingConfig
from pipelines.engine.processes import GRACE_SECONDS
from pipelines.serving.models import Model
from singleshot.errors import UserError

HANGS_AFTER_S = 60
"""Time after which a process that doesn't respond is taken for dead."""
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable with the directory of the metrics, for `prometheus_client`."""


@contextlib.contextmanager
def workers(models: Sequence[Model], config: ServingConfig) -> Iterator[None]:
    """Serve models on this machine within the context, which begins when every process answers.

    Raises:
        UserError: the port is in use, or a process ends while it starts.
    """
    with _listener(config) as listener, _shared_metrics():
        supervisor = _Supervisor(
            Config(
                functools.partial(_application, models, config),
                factory=True,
                workers=config.workers,
                http="pipelines.serving.protocol:Protocol",
                ws="websockets-sansio",
                ws_max_size=1000,
                lifespan="off",
                log_level="error",  # clients cause the messages below this level
                access_log=False,
                timeout_keep_alive=math.ceil(config.timeout_s),
                timeout_graceful_shutdown=int(GRACE_SECONDS),
                timeout_worker_healthcheck=HANGS_AFTER_S,
            ),
            [listener],
        )
        thread = threading.Thread(target=supervisor.run, daemon=True)
        thread.start()
        try:
            supervisor.started.wait()
            if not supervisor.ready:
                raise UserError("a process of the server ended as it started; the reason is above")
            yield
        finally:
            supervisor.should_exit.set()
            thread.join(2 * GRACE_SECONDS)


def _application(models: Sequence[Model], config: ServingConfig) -> FastAPI:
    """The application of a process. A user's mistake ends the process with one line."""
    # Imported here, so that a new process responds to its supervisor while it imports PyTorch.
    from pipelines.serving.app import build_app

    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        return build_app(models, config)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(STARTUP_FAILURE)


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


class _Supervisor(Multiprocess):
    """Uvicorn's supervisor, run in a thread, which leaves signals to the program."""

    def __init__(self, config: Config, sockets: list[socket.socket]) -> None:
        self.config, self.sockets = config, sockets
        self.processes_num, self.processes = config.workers, []
        self.should_exit, self.signal_queue = threading.Event(), []
        self.started, self.ready = threading.Event(), False

    def init_processes(self) -> None:
        resource_tracker.ensure_running()  # the first process would start it, which unblocks the signal here
        # The processes inherit this: a terminal's Ctrl-C is only for this process, which ends the others.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        super().init_processes()
        self.ready = all(each.wait_until_ready(math.inf, self.should_exit) for each in self.processes)
        self.started.set()

    def keep_subprocess_alive(self) -> None:
        """Replace processes that have ended or hang, and say so."""
        before = list(self.processes)
        super().keep_subprocess_alive()
        for process in before:
            if process not in self.processes:
                ended = f"a process of the server ended with status {process.exitcode}"
                print(f"{ended}; another takes its place", file=sys.stderr)


@contextlib.contextmanager
def _shared_metrics() -> Iterator[None]:
    """Have the processes that start within the context share Prometheus' metrics."""
    with tempfile.TemporaryDirectory(prefix="singleshot-metrics-") as directory:
        os.environ[DIRECTORY] = directory
        try:
            yield
        finally:
            del os.environ[DIRECTORY]


@contextlib.contextmanager
def _listener(config: ServingConfig) -> Iterator[socket.socket]:
    """A socket whose connections end when a client takes no byte of an answer for `timeout_s`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that can't be one, such as `a..b`
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{config.host}: {reason}; give another --host") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(1000 * config.timeout_s))
        try:
            listener.bind(address)
        except OSError as error:
            name = f"{config.host}:{config.port}"
            raise UserError(f"{name}: {error.strerror}; give another --host or --port") from error
        yield listener
