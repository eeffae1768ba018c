"""The Ray cluster to run on: an existing one, or a temporary one on this machine."""

import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.processes import takes_its_children_along
from singleshot.errors import UserError, in_a_line

STARTS = 5
"""Number of attempts to start Ray on this machine. Ray gives up after 30 s, but a busy machine may need more
time."""
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


@contextlib.contextmanager
def ray_cluster(config: ExecutorConfig) -> Iterator[None]:
    """Join the cluster that RAY_ADDRESS or the configuration names, else a temporary one on this machine.

    Raises:
        UserError: the cluster cannot be reached, or it was lost meanwhile.
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
                "`dvc repro` goes on from them"
            ) from error


def _set_variables(here: bool) -> None:
    """Set variables that Ray reads when it is imported; `here` if it is to run on this machine alone."""
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
            _keep_token()


def _suits_sockets(folder: str) -> bool:
    return len(folder) <= LONGEST_TEMPORARY and folder.isascii()


def _check_temporary(folder: str) -> None:
    if not (_suits_sockets(folder) and os.access(folder, os.W_OK)):
        raise UserError(
            f"RAY_TMPDIR is {folder}; set it to a folder that can be written, whose path has at most "
            f"{LONGEST_TEMPORARY} characters, all ASCII, such as /tmp"
        )


def _keep_token() -> None:
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
    """Patterns, as in `.gitignore`, of all in a checkout's root but dvc.yaml, Python modules and packages.

    A user's own modules, e.g. of environments, lie there as well. The catalog reads dvc.yaml.
    """
    names = (
        path.name
        for path in root.iterdir()
        if path.suffix != ".py" and path.name != "dvc.yaml" and not (path / "__init__.py").exists()
    )
    return ["/" + re.sub(r"([\[\]*?!#\\ ])", r"\\\1", name) for name in sorted(names)]
