"""Ray clusters of tests' own, however busy the machine is."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from pipelines.engine.ray_cluster import NO_HEALTH_CHECKS, took_too_long


@contextlib.contextmanager
def started_cluster(num_cpus: int, health_checks: bool = False) -> Iterator[Any]:
    """A cluster whose first node has so many cores; for others, :func:`started_again`.

    With health checks, it notices that a node is lost, but may also take a busy node for lost.
    """
    from ray.cluster_utils import Cluster

    # A node has waited for itself before.
    node = {"num_cpus": num_cpus, "include_dashboard": False, "wait": False}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in NO_HEALTH_CHECKS.items():
            patch.delenv(name, raising=False) if health_checks else patch.setenv(name, value)
        cluster = started_again(lambda: Cluster(initialize_head=True, head_node_args=node))
    try:
        yield cluster
    finally:
        cluster.shutdown()


def started_again(start: Callable[[], Any]) -> Any:
    """What `start` returns; called again where Ray gives up, which waits 30 s: too few for a busy machine."""
    while True:
        earlier = set(psutil.Process().children())
        try:
            return start()
        except Exception as error:
            if not took_too_long(error):
                raise
            _kill(set(psutil.Process().children()) - earlier)


def _kill(processes: set[psutil.Process]) -> None:
    """Kill processes and those below them, so that a node that is late doesn't join after all."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
    psutil.wait_procs(processes)
