"""Ray of a `dvc repro`: real processes."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
STAGE = """
import os
import ray
from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.ray_cluster import ray_cluster
with ray_cluster(ExecutorConfig(kind="ray")):
    assert ray.get(ray.remote(lambda: 6 * 7).remote()) == 42
    print(ray.get_runtime_context().gcs_address, flush=True)
"""
DVC = """
import subprocess, sys
for _ in sys.stdin:
    subprocess.run([sys.executable, "stage.py"], check=True, stdin=subprocess.DEVNULL)
"""


@pytest.fixture
def dvc(tmp_path):
    """A process named dvc, which runs a stage for each line that it reads; the stage prints Ray's address."""
    (tmp_path / "stage.py").write_text(STAGE)
    (tmp_path / "dvc").write_text(DVC)
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "dvc"],
        cwd=tmp_path,
        env=os.environ | {"DVC_STAGE": "train", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def run_stage(dvc):
    """Ray's address in a stage of `dvc`."""
    dvc.stdin.write("\n")
    dvc.stdin.flush()
    return dvc.stdout.readline()


def ray_of(dvc):
    """The processes of Ray that belong to `dvc`."""
    command = ["-m", "pipelines.engine.local_ray", str(dvc.pid)]
    # A zombie has no command line: None.
    every = psutil.process_iter(["cmdline"])
    host = next(process for process in every if (process.info["cmdline"] or [])[1:4] == command)
    return [host, *host.children(recursive=True)]


def test_stages_of_a_dvc_share_a_ray_that_ends_with_it(dvc, tmp_path):
    first = run_stage(dvc)
    assert run_stage(dvc) == first != ""
    lost = ray_of(dvc)
    assert "raylet" in {process.name() for process in lost}
    lost[0].kill()
    wait_until(lambda: not psutil.wait_procs(lost, timeout=0)[1], "Ray's processes ended with their host")
    assert run_stage(dvc) not in {"", first}
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
