"""Ray of a `dvc repro`: real processes."""

import subprocess
import sys

import psutil
import pytest
from stages import helper_of, run_stage, started_dvc
from waiting import PATIENCE_S, wait_until

STAGE = """
import os
import ray
from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.ray_cluster import ray_cluster
with ray_cluster(ExecutorConfig(kind="ray")):
    assert ray.get(ray.remote(lambda: 6 * 7).remote()) == 42
    print(ray.get_runtime_context().gcs_address, flush=True)
"""


@pytest.fixture
def dvc(tmp_path):
    with started_dvc(tmp_path, STAGE) as process:
        yield process


def address_in_a_stage(dvc):
    """Ray's address in a stage of `dvc`."""
    *_, address, status = run_stage(dvc).splitlines()
    assert status == "status 0"
    return address


def ray_of(dvc):
    """The processes of Ray that belong to `dvc`."""
    host = helper_of(dvc, "pipelines.engine.local_ray")
    return [host, *host.children(recursive=True)]


def test_stages_of_a_dvc_share_a_ray_that_ends_with_it(dvc, tmp_path):
    first = address_in_a_stage(dvc)
    assert address_in_a_stage(dvc) == first != ""
    lost = ray_of(dvc)
    assert "raylet" in {process.name() for process in lost}
    lost[0].kill()
    wait_until(lambda: not psutil.wait_procs(lost, timeout=0)[1], "Ray's processes ended with their host")
    assert address_in_a_stage(dvc) not in {"", first}
    processes = ray_of(dvc)
    dvc.kill()
    dvc.wait()
    assert not psutil.wait_procs(processes, timeout=PATIENCE_S)[1]
    assert [path.name for path in tmp_path.glob(".dvc/tmp/*")] == ["ray.log"]


def test_a_ray_that_does_not_start_is_named_with_its_log(tmp_path, monkeypatch):
    from pipelines.engine.local_ray import HOST_LOG, shared_ray

    monkeypatch.chdir(tmp_path)
    HOST_LOG.parent.mkdir(parents=True)
    ended = psutil.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setenv("RAY_TMPDIR", "x" * 200)  # sockets' paths are limited to 107 bytes
    with pytest.raises(RuntimeError, match=r"ray\.log says why"):
        shared_ray(ended)
    ended.communicate()
