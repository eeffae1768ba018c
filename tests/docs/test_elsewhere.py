"""docs/elsewhere.md: its code runs where nothing of this repository can be imported."""

import functools
import http.server
import re
import shutil
import subprocess
import sys
import threading

import numpy as np
import onnx
import pytest
import small_graphs
import torch
from browsers import chromium
from checkouts import ROOT
from PIL import Image
from small_networks import save_style
from waiting import PAGE_S

from pipelines.cli.register import register
from pipelines.engine.tracking import TrackingConfig, mlflow_client
from singleshot.export.model_files import open_network
from singleshot.io.onnx_model import read_card
from singleshot.io.to_onnx import card_of, to_onnx

PAGE = (ROOT / "docs/elsewhere.md").read_text(encoding="utf-8")


def code(section):
    """The code of a section of the page."""
    return re.search(rf"^## {section}$.*?^```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1]


def run(section, directory):
    """Run a section's code by an interpreter that is isolated from this checkout; what it prints."""
    command = [sys.executable, "-I", "-c", code(section)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    return done.stdout


def numbers(printed):
    return np.array(re.findall(r"-?\d+\.\d*(?:e[-+]\d+)?", printed[printed.rindex("[") :]), float)


@pytest.fixture
def graphs(tmp_path):
    small_graphs.write_all(tmp_path / "graphs")
    return tmp_path / "graphs"


def test_onnxruntime(graphs, tmp_path):
    (policy,) = (graphs / small_graphs.BCQ).glob("*.onnx")
    shutil.copy(policy, tmp_path / "policy.onnx")
    latents = np.random.default_rng(0).standard_normal((1, small_graphs.SAMPLES, small_graphs.LATENT))
    expected = small_graphs.bcq_action(np.ones(17), latents[0].astype(np.float32))
    np.testing.assert_allclose(numbers(run("onnxruntime", tmp_path)), expected, atol=1e-6)


@pytest.mark.slow
def test_opencv(tmp_path):
    source = save_style(tmp_path / "source", width=8)
    network = open_network(source)
    onnx.save(to_onnx(network, card_of(network, "noise", "0", source), 20), tmp_path / "style.onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    run("OpenCV", tmp_path)
    with torch.no_grad():
        expected = network.module(torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255)[0].permute(1, 2, 0)
    made = np.asarray(Image.open(tmp_path / "stylised.png"))
    np.testing.assert_allclose(made, 255 * expected.numpy(), atol=0.6)


@pytest.mark.slow
def test_mlflow(graphs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where MLflow, too, looks for the database
    policy = tmp_path / "bc.onnx"
    small_graphs.write_bc(policy, latents=True)
    with mlflow_client(TrackingConfig(f"sqlite:///{tmp_path / 'mlflow.db'}")) as (client, _):
        experiment = client.create_experiment("graphs", (tmp_path / "artifacts").as_uri())
        run_id = client.create_run(experiment).info.run_id
        register(client, policy, read_card(policy), run_id)
    np.testing.assert_allclose(
        numbers(run("MLflow", tmp_path)), small_graphs.bc_action(np.ones(17)), atol=1e-6
    )


class Quiet(http.server.SimpleHTTPRequestHandler):
    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript"}

    def log_message(self, *_):
        """Say nothing."""


@pytest.mark.slow
def test_a_browser(graphs, tmp_path):
    if shutil.which("npm") is None:
        pytest.skip("there is no npm here")
    npm = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "onnxruntime-web@1.22.0"]
    if subprocess.run(npm, cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("npm's registry does not answer")
    shutil.copy(graphs / "styles/swirls/swirls.onnx", tmp_path / "style.onnx")
    (tmp_path / "index.html").write_text(code("A browser"), encoding="utf-8")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_function("document.title == 'stylised'", timeout=1000 * PAGE_S)
        pixel = page.evaluate(
            "[...document.getElementById('canvas').getContext('2d').getImageData(9, 9, 1, 1).data]"
        )
    server.shutdown()
    assert pixel == [0, 255, 204, 255]  # the style of small_graphs is the negative
