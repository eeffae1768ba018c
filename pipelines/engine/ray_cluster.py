"""The Ray cluster to run on: an existing one, or a temporary one on this machine."""

import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from pipelines.engine.disks import check_space
from pipelines.engine.environment_variables import set_variables
from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.processes import takes_its_children_along
from singleshot.errors import UserError

STARTS = 5
"""Number of attempts to start Ray on this machine. Ray gives up after 30 s, but a busy machine may need more
time."""
STARTUP_TIMEOUTS = ("timed out during startup", "Timed out waiting for file")
"""Parts of the messages of the exceptions that Ray raises when it gives up: a bare one for a node, and a
RuntimeError for the head's port."""
NO_HEALTH_CHECKS = {"health_check_failure_threshold": 2**31 - 1}
"""Options that turn Ray's health checks off. On one machine, a node that does not answer is only busy: with
60 processes on 2 cores, Ray took it for dead after five checks. Closed connections show that a node has
ended."""


@contextlib.contextmanager
def ray_cluster(config: ExecutorConfig) -> Iterator[None]:
    """Join the cluster that RAY_ADDRESS or the configuration names, else a temporary one on this machine.

    Raises:
        UserError: the cluster cannot be reached, or it was lost meanwhile.
    """
    set_variables()
    address = cluster_address(config)
    if address is None:
        _keep_to_this_user()
    import ray

    with contextlib.ExitStack() as joined:
        try:
            joined.enter_context(_joined(address))
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise UserError(
                f"Ray cluster {address or 'on this machine'}: {error}; `python -m pipelines doctor` says more"
            ) from error
        try:
            yield
        except ray.exceptions.RayError as error:
            # An error of the cluster, e.g. a head that was restarted; exceptions of cells don't get here.
            raise UserError(
                f"Ray cluster {address or 'on this machine'} was lost: {type(error).__name__}; finished "
                "cells and checkpoints are kept, `dvc repro` goes on from them"
            ) from error


@contextlib.contextmanager
def _joined(address: str | None) -> Iterator[None]:
    import ray

    if address is not None:
        check_joinable(address)
        # Workers have no checkout: the code is sent to them, and nothing else.
        _join(address=address, runtime_env={"working_dir": str(Path.cwd()), "excludes": _not_code()})
        try:
            yield
        finally:
            ray.shutdown()
    else:
        with _started_here():
            yield


def _keep_to_this_user() -> None:
    """Have Ray for this machine listen on 127.0.0.1 alone, and keep its token from the machine's other users.

    Ray reads the variable when it is imported, and has named it for the systems where it does so by itself.
    Whoever reads the token may run code as its owner; Ray writes it so that everybody can.
    """
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    token = Path.home() / ".ray" / "auth_token"
    token.parent.mkdir(exist_ok=True)
    try:
        file = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        token.chmod(0o600)
    else:
        with os.fdopen(file, "w") as content:
            content.write(secrets.token_hex(32))


def _join(**options: Any) -> None:
    """`ray.init`, but keep the handler of SIGTERM: Ray's would exit before a stage has ended its runs."""
    import ray

    on_sigterm = signal.getsignal(signal.SIGTERM)
    ray.init(logging_level=logging.WARNING, **options)
    signal.signal(signal.SIGTERM, on_sigterm)


def took_too_long(error: Exception) -> bool:
    """Whether Ray gave up starting because it took too long."""
    return any(message in str(error) for message in STARTUP_TIMEOUTS)


@contextlib.contextmanager
def _started_here() -> Iterator[None]:
    """Ray on this machine, joined by this process; Ray's processes end with this one.

    Raises:
        RuntimeError: it did not start.
        DiskFullError: there is no space for its logs.
    """
    import ray

    check_space(Path(os.environ.get("RAY_TMPDIR", "/tmp")))
    for _ in range(STARTS):
        with takes_its_children_along():
            try:
                # Without `local`, Ray joins any cluster that it finds here, even one that is ending.
                # A copy, as Ray adds to it, and would warn of its own additions the next time.
                _join(address="local", include_dashboard=False, _system_config=dict(NO_HEALTH_CHECKS))
            except Exception as error:
                if not took_too_long(error):
                    raise
                print("Ray did not start within its 30 seconds: starting it again", file=sys.stderr)
                continue
            try:
                yield
            finally:
                ray.shutdown()
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


CODE = {"singleshot", "tasks", "pipelines"}


def _not_code() -> list[str]:
    """The files and folders in the repository's root that Ray's workers don't need."""
    return [f"/{path.name}" for path in Path.cwd().iterdir() if path.name not in CODE]
