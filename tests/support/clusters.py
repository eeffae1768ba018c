"""Ray clusters of tests' own, however busy the machine is."""

import contextlib
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from pipelines.engine.on_ray import NO_HEALTH_CHECKS, keep_token, took_too_long


@contextlib.contextmanager
def started_cluster(num_cpus: int) -> Iterator[Any]:
    """A cluster of one node that has so many cores."""
    from ray.cluster_utils import Cluster

    # A node has waited for itself before.
    node = {"num_cpus": num_cpus, "include_dashboard": False, "wait": False}
    keep_token()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in NO_HEALTH_CHECKS.items():
            patch.setenv(name, value)
        while True:  # Ray gives up after 30 s: too few for a busy machine
            earlier = set(psutil.Process().children())
            try:
                cluster = Cluster(initialize_head=True, head_node_args=node)
                break
            except Exception as error:
                if not took_too_long(error):
                    raise
                _kill(set(psutil.Process().children()) - earlier)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def _kill(processes: set[psutil.Process]) -> None:
    """Kill processes and those below them, so that a node that is late doesn't join after all."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
    psutil.wait_procs(processes)
