"""Where the services run, and how they begin and end: each test has a Ray of its own."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import requests
from serving_clients import act, photo, pixels_of, serving_config, stylize
from small_graphs import STATE, bc_action, write_all

from pipelines.engine.fanout import ExecutorConfig
from pipelines.serve import running
from pipelines.serving.models import find_models
from tasks.errors import UserError


@pytest.fixture
def cluster():
    """One to join, whose workers know nothing of this directory."""
    # Before Ray is imported: as in fanout.ray_cluster.
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="token")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield ExecutorConfig(kind="ray", address=cluster.address)
    cluster.shutdown()


@pytest.mark.slow
def test_a_cluster_serves_without_our_files_and_is_left_as_it_was(cluster, tmp_path):
    write_all(tmp_path / "onnx")
    models = find_models(tmp_path / "onnx")
    with running(models, serving_config(), cluster) as (address,):
        shutil.rmtree(tmp_path / "onnx")
        state = np.linspace(-2, 2, STATE).tolist()
        assert act(address, state=state).json()["action"] == pytest.approx(
            bc_action(state).tolist(), abs=1e-6
        )
        content = photo()
        assert np.array_equal(pixels_of(stylize(address, content).content), 255 - pixels_of(content))
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{address}/healthz", timeout=20)
    greedy = serving_config(num_cpus=64)
    with pytest.raises(UserError, match="there are 2; lower"), running(models, greedy, cluster):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_a_signal_and_leaves_nothing(tmp_path, number):
    write_all(tmp_path)
    config = serving_config()
    (tmp_path / "command.py").write_text(
        "from pathlib import Path\n"
        "from pipelines.engine.fanout import ExecutorConfig\n"
        "from pipelines.serve import serve_forever\n"
        "from pipelines.serving.config import ServiceConfig, ServingConfig\n"
        f"serve_forever({config!r}, ExecutorConfig(kind='ray'), Path({str(tmp_path)!r}))\n"
    )
    command = [sys.executable, tmp_path / "command.py"]
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        line = process.stdout.readline()
        assert line.startswith("serving 1 styles, 2 policies, 1 classifiers at http://127.0.0.1:")
        children = psutil.Process(process.pid).children(recursive=True)
        assert requests.get(f"http://127.0.0.1:{config.port}/readyz", timeout=20).status_code == 200
        os.killpg(process.pid, number)  # as a terminal's Ctrl-C does
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.endswith("ended\n")
    assert psutil.wait_procs(children, timeout=10)[1] == []
