"""Where the services run, and how they begin and end: each test has a Ray of its own."""

import io
import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import requests
import torch
from PIL import Image
from serving_clients import act, asking_on, photo, pixels_of, serving_config, stylize
from skimage.data import chelsea
from small_graphs import STATE, bc_action, write_all
from small_networks import save_agent, save_style
from waiting import PATIENCE_S, wait_until

from pipelines.engine.execution import ExecutorConfig
from pipelines.serving import workers
from pipelines.serving.models import find_models
from pipelines.serving.replicas import NAME, _preflight
from pipelines.serving.server import running
from singleshot.errors import UserError
from singleshot.export.model_files import open_network
from singleshot.io.images import read_rgb
from tasks.export_classifier import ClassifierParams, export_classifier
from tasks.export_graph import ExportParams
from tasks.export_policy import export_policy
from tasks.export_style import export_style
from tasks.job import Job


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "http://127.0.0.1:8000"), ("::1", "http://[::1]:8000")]
)
def test_addresses_are_urls(monkeypatch, host, address):
    monkeypatch.setattr(workers, "workers", lambda *_: nullcontext())
    with running([], serving_config(host=host, port=8000), ExecutorConfig()) as addresses:
        assert addresses == [address]


def node(cores, alive=True):
    return {"Alive": alive, "Resources": {"CPU": cores} if cores else {}}


@pytest.mark.parametrize(
    ("num_cpus", "room"), [(4.0, 0), (3.0, 1), (1.5, 3), (1.0, 5), (0.1, 50)], ids=lambda given: f"{given:g}"
)
def test_each_process_has_to_fit_on_one_node_of_a_cluster(monkeypatch, num_cpus, room):
    """Ray would wait for such a node for ever."""
    nodes = [node(2.0), node(3.0), node(0), node(64.0, alive=False)]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 5.0})
    monkeypatch.setattr("ray.serve.status", lambda: SimpleNamespace(applications={}))
    if room:
        _preflight(serving_config(num_cpus=num_cpus, workers=room, max_workers=room))
    too_many = serving_config(num_cpus=num_cpus, workers=room + 1, max_workers=room + 1)
    with pytest.raises(UserError, match=rf"{room + 1} times {num_cpus:g} cores, .* room for {room} of these"):
        _preflight(too_many)


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
        requests.get(f"{address}/healthz")
    greedy = serving_config(num_cpus=64.0)
    with pytest.raises(UserError, match="have room for 0 of these; lower"), running(models, greedy, cluster):
        pass


@pytest.mark.slow
def test_a_replica_that_dies_is_replaced_while_another_answers(cluster, tmp_path):
    from ray import serve

    def application():
        return serve.status().applications[NAME].deployments["application"]

    def replicas():
        name = f"ray::ServeReplica:{NAME}:application"
        return {each for each in psutil.process_iter(["name"]) if each.info["name"] == name}

    write_all(tmp_path / "onnx")
    with running(find_models(tmp_path / "onnx"), serving_config(workers=2), cluster) as (address,):
        first = replicas()
        assert len(first) == 2
        with asking_on(address) as answered:
            next(iter(first)).kill()
            # So Ray Serve calls what has fewer replicas than it should; it is no end of anything.
            wait_until(lambda: application().status == "UNHEALTHY", "the death is noticed")
            wait_until(lambda: application().status == "HEALTHY", "another replica answers")
        assert answered[200]
        assert set(answered) <= {200, 500}
        assert answered[500] <= 4  # what the one that died was at
        assert len(replicas() & first) == 1
        assert len(replicas()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill)], ids=["ctrl-c", "kill"]
)
def test_the_command_serves_until_a_signal_and_leaves_nothing(tmp_path, number, send):
    """A terminal's Ctrl-C goes to all that the command started, too."""
    write_all(tmp_path)
    config = serving_config()
    (tmp_path / "command.py").write_text(
        "from pathlib import Path\n"
        "from pipelines.engine.execution import ExecutorConfig\n"
        "from pipelines.serving.server import serve_forever\n"
        "from pipelines.config.serving import PicturesConfig, ServingConfig, StatesConfig\n"
        "if __name__ == '__main__':\n"
        f"    serve_forever({config!r}, ExecutorConfig(), Path({str(tmp_path)!r}))\n"
    )
    command = [sys.executable, tmp_path / "command.py"]
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        line = process.stdout.readline()
        assert line.startswith("serving 1 style, 2 policies, 1 classifier at http://127.0.0.1:")
        children = psutil.Process(process.pid).children(recursive=True)
        assert requests.get(f"http://127.0.0.1:{config.port}/readyz").status_code == 200
        undisturbed = list(map(takes_no_interrupt, children))
        send(process.pid, number)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert out.endswith("ended\n")
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
    assert all(undisturbed)


def takes_no_interrupt(process):
    """Whether a process blocks or ignores SIGINT, so that Ctrl-C never ends it with a traceback."""
    text = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    lines = (line.split(":") for line in text.splitlines())
    status = dict(line for line in lines if len(line) == 2)
    return any(int(status[mask], 16) & 1 << signal.SIGINT - 1 for mask in ("SigBlk", "SigIgn"))


def exported(directory, task, params, **inputs):
    directory.mkdir(parents=True)
    for _ in task([Job(params, inputs, directory)]):
        pass


@pytest.mark.slow
def test_exported_networks_answer_as_pytorch_does(tmp_path):
    graphs, cell = tmp_path / "onnx", "Hopper/bcq/random-0.98/seed-0"
    sources = {
        "styles/dots": save_style(tmp_path / "model.safetensors"),
        cell: save_agent(tmp_path / "agent.safetensors", "bcq", 0.98),
    }
    for (name, source), task in zip(sources.items(), (export_style, export_policy), strict=True):
        exported(graphs / name, task, ExportParams(name, opset=20), source=source)
    classifier = "classifiers/efficientnet_lite0"
    params = ClassifierParams(classifier, "efficientnet_lite0", "package", opset=20)
    exported(graphs / classifier, export_classifier, params)
    style = open_network(sources["styles/dots"], "dense").module
    policy = open_network(sources[cell], "compacted").module
    cat = io.BytesIO()
    Image.fromarray(chelsea()).save(cat, "PNG")
    state = np.linspace(-1, 1, 11).tolist()
    with running(find_models(graphs), serving_config(), ExecutorConfig(kind="ray")) as (address,):
        picture, headers = photo(66, 90), {"Content-Type": "image/png"}
        stylised = requests.post(f"{address}/stylize/dots", picture, headers=headers)
        acted = requests.post(f"{address}/act/Hopper", json={"state": state, "seed": 3})
        classified = requests.post(f"{address}/classify", cat.getvalue(), headers=headers)
    with torch.inference_mode():
        wanted = style(read_rgb(io.BytesIO(picture))[None])[0].permute(1, 2, 0).mul(255).numpy()
        latents = torch.from_numpy(np.random.default_rng(3).standard_normal((1, 10, 6), np.float32))
        action, _ = policy(torch.tensor([state]), latents)
    assert np.abs(pixels_of(stylised.content) - wanted).max() < 0.6  # half a level, and rounding
    assert acted.json()["action"] == pytest.approx(action[0].tolist(), abs=1e-5)
    found = {each["label"]: each["probability"] for each in classified.json()["answers"]}
    assert set(list(found)[:2]) == {"tiger cat", "Egyptian cat"}
