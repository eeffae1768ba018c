"""The Ray cluster to run on: an existing one, or a temporary one on this machine."""

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.lifecycle import takes_its_children_along
from tasks.errors import UserError

STARTS = 5
"""Number of attempts to start Ray on this machine. Ray gives up after 30 s, but a busy machine may need more
time."""
STARTUP_TIMEOUT = "timed out during startup"
"""Part of the message of the bare Exception that Ray raises when it gives up."""
NO_HEALTH_CHECKS = {"health_check_failure_threshold": 2**31 - 1}
"""Options that turn Ray's health checks off. On one machine, a node that does not answer is only busy: with
60 processes on 2 cores, Ray took it for dead after five checks. Closed connections show that a node has
ended."""


@contextlib.contextmanager
def ray_cluster(config: ExecutorConfig) -> Iterator[None]:
    """Join the cluster that RAY_ADDRESS or the configuration names, else start a temporary one here.

    Raises:
        UserError: the cluster cannot be reached, or it was lost meanwhile.
    """
    # Ray reads these when it is imported. Without the second, a task with num_gpus=0 sees every GPU.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    # Set so that a cluster with a token can be joined by host:port, and a local one starts without a warning.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    # `excludes` below is complete; Ray would add to it, with two warnings.
    os.environ["RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES"] = ""
    import ray

    address = cluster_address(config)
    options: dict[str, Any] = {"log_to_driver": True, "logging_level": logging.WARNING}
    if address is None:
        # Without `local`, Ray joins any cluster that it finds on this machine, even one that is ending.
        options |= {"address": "local", "include_dashboard": False, "_system_config": NO_HEALTH_CHECKS}
    else:
        # Workers have no checkout: the code is sent to them, and nothing else.
        options |= {
            "address": address,
            "runtime_env": {"working_dir": str(Path.cwd()), "excludes": _not_code()},
        }
    # Ray installs a handler of SIGTERM that exits at once; ours ends the stage's runs first.
    on_sigterm = signal.getsignal(signal.SIGTERM)
    with contextlib.ExitStack() as started:
        try:
            if address is None:
                started.enter_context(_started_here(options))
            else:
                check_joinable(address)
                ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise UserError(
                f"Ray cluster {address or 'on this machine'}: {error}; `python -m pipelines doctor` says more"
            ) from error
        try:
            signal.signal(signal.SIGTERM, on_sigterm)
            yield
        except ray.exceptions.RayError as error:
            # An error of the cluster, e.g. a head that was restarted; exceptions of cells don't get here.
            raise UserError(
                f"Ray cluster {address or 'on this machine'} was lost: {type(error).__name__}; finished "
                "cells and checkpoints are kept, `dvc repro` goes on from them"
            ) from error
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _started_here(options: Mapping[str, Any]) -> Iterator[None]:
    """A cluster on this machine, whose processes end with this process.

    Raises:
        RuntimeError: it did not start.
    """
    import ray

    for _ in range(STARTS):
        with takes_its_children_along():
            try:
                ray.init(**options)
            except Exception as error:
                if STARTUP_TIMEOUT not in str(error):
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


def _not_code() -> list[str]:
    """The files and folders in the repository's root that Ray's workers don't need."""
    return [f"/{path.name}" for path in Path.cwd().iterdir() if path.name not in {"tasks", "pipelines"}]
