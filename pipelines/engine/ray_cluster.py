"""The Ray cluster to run on: an existing one, or a temporary one on this machine."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.import_settings import set_variables
from pipelines.engine.lifecycle import dvc_above
from pipelines.engine.local_ray import join, shared_ray, started_here
from singleshot.errors import UserError


@contextlib.contextmanager
def ray_cluster(config: ExecutorConfig) -> Iterator[None]:
    """Join the cluster that RAY_ADDRESS or the configuration names, else a temporary one on this machine.

    Within a `dvc repro`, all stages share the temporary one.

    Raises:
        UserError: the cluster cannot be reached, or it was lost meanwhile.
    """
    set_variables()
    import ray

    address = cluster_address(config)
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
        join(address=address, runtime_env={"working_dir": str(Path.cwd()), "excludes": _not_code()})
    elif dvc := dvc_above():
        join(address=shared_ray(dvc))
    else:
        with started_here():
            yield
        return
    try:
        yield
    finally:
        ray.shutdown()


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
