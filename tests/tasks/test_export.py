import csv
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from small_networks import make_agent, save_agent, save_scores

import tasks
from singleshot.export.model_files import open_network
from singleshot.io.onnx_model import load_onnx, read_card
from singleshot.io.whole_file import sha256_of
from singleshot.job import Job
from tasks import export
from tasks.export import ClassifierParams, ExportParams, export_classifier, export_policy

ROOT = Path(tasks.__file__).parents[1]
SLUG = "hopper-bcq-random-0.98-seed-0"


def rows_of(directory):
    with (directory / "exports.csv").open() as file:
        return list(csv.DictReader(file))


def export_to(output, task, params, **inputs):
    """Run an export task; its only row."""
    output.mkdir()
    list(task([Job(params, inputs, output, commit="0123abc")]))
    (row,) = rows_of(output)
    return row


def axes(values):
    return {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in values
    }


def test_a_pruned_policy_has_a_file_for_each_form_of_which_the_table_counts_what_is_stored(exported):
    rows = rows_of(exported.bcq.out)
    names = [f"{SLUG}.onnx", f"{SLUG}-sparse.onnx", f"{SLUG}-compacted.onnx"]
    assert sorted(path.name for path in exported.bcq.out.iterdir()) == sorted([*names, "exports.csv"])
    assert [(row["file"], row["form"], row["sparse_initializers"]) for row in rows] == [
        (names[0], "masked", "False"),
        (names[1], "masked", "True"),
        (names[2], "compacted", "False"),
    ]
    sizes = [int(row["bytes"]) for row in rows]
    assert sizes == [(exported.bcq.out / name).stat().st_size for name in names]
    assert [metric.values for metric in exported.bcq.metrics] == [
        {f"{key}_{form}": pytest.approx(float(row[key])) for key in ("bytes", "parameters", "max_abs_error")}
        for form, row in zip(("masked", "sparse", "compacted"), rows, strict=True)
    ]
    agent = make_agent("bcq", 0.98)
    layers = [(net, f"{part}.{i}") for net, part in PARTS for i in range(3)]
    weights = sum(agent.masks[network][layer].numel() for network, layer in layers)
    kept = sum(int(agent.masks[network][layer].sum()) for network, layer in layers)
    biases = sum(agent.networks[network].biases[layer].numel() for network, layer in layers)
    masked, sparse, compacted = (int(row["parameters"]) for row in rows)
    assert (masked, sparse) == (weights + biases, kept + biases)
    module = open_network(exported.bcq.source, "compacted").module
    assert compacted == sum(parameter.numel() for parameter in module.parameters()) < 0.7 * masked
    assert sizes[0] == pytest.approx(4 * masked, rel=0.01)
    assert sizes[1] == pytest.approx(12 * kept + 4 * biases, rel=0.1)
    assert 4 * compacted < sizes[2] < 4 * compacted + 7000


PARTS = (("vae", "decoder"), ("actor", "pi"), ("critic", "q1"))
"""Of a BCQ agent, what its policy takes."""


@pytest.mark.parametrize(("batch", "samples"), [(1, 10), (5, 4), (2, 100)])
def test_every_file_of_a_policy_acts_as_the_agent(exported, batch, samples):
    agent = make_agent("bcq", 0.98)
    rng = np.random.default_rng(batch)
    state = rng.standard_normal((batch, 11)).astype(np.float32)
    latents = rng.standard_normal((batch, samples, 6)).astype(np.float32)
    expected = agent.algorithm.act(
        agent.networks, torch.from_numpy(state)[None], torch.from_numpy(latents)[None]
    )
    files = [exported.bcq.out / row["file"] for row in rows_of(exported.bcq.out)]
    outputs = [load_onnx(file)(state=state, latents=latents) for file in files]
    for output in outputs:
        np.testing.assert_allclose(output["action"], expected[0].numpy(), rtol=0, atol=5e-6)
        assert (output["choice"].shape, output["choice"].dtype) == ((batch,), np.int64)
    masked, sparse, _ = outputs
    assert all(np.array_equal(masked[name], sparse[name]) for name in masked)


def test_a_file_says_what_it_is_and_nothing_of_where_it_was_made(exported):
    agent = make_agent("bcq", 0.0)
    for row, form in zip(rows_of(exported.bcq.out), ("masked", "masked", "compacted"), strict=True):
        path = exported.bcq.out / row["file"]
        card, graph = read_card(path), onnx.load(path)
        assert (card.kind, card.form, card.sparsity) == ("policy", form, 0.98)
        assert (card.cell, card.commit) == ("Hopper/bcq/random-0.98/seed-0", "0123abc")
        assert card.source_sha256 == sha256_of(exported.bcq.source)
        assert card.details == {
            "environment": "Hopper",
            "algorithm": "bcq",
            "samples": 10,
            "latent_size": 6,
            "config": json.loads(json.dumps(asdict(agent.algorithm.config))),
            "action_size": 3,
            "bounds": None,
            "environment_spec": json.loads(json.dumps(asdict(agent.environment))),
        }
        # The last five of six evaluations: t(0.975; 4) = 2.7764, standard error sqrt(2.5 / 5).
        assert (card.score.measure, card.score.mean, card.score.evaluations) == ("D4RL score", 3.0, 5)
        assert (card.score.low, card.score.high) == pytest.approx((1.0367, 4.9633), abs=1e-4)
        shown = graph.doc_string
        assert "D4RL score 5.0 in its last evaluation, 3.0 (95 % interval 1.0 to 5.0) as the mean" in shown
        assert "Licence: MIT" in shown
        assert {each.name: list(each.shape) for each in card.inputs} == axes(graph.graph.input)
        assert axes([*graph.graph.input, *graph.graph.output]) == {
            "state": ["batch", 11],
            "latents": ["batch", "samples", 6],
            "action": ["batch", 3],
            "choice": ["batch"],
        }
        text = graph.SerializeToString()
        assert not [word for word in (b"stack_trace", b".py", str(ROOT).encode()) if word in text]


PROGRAM = """
import sys
from pathlib import Path
from tasks.export import ExportParams, export_policy
from singleshot.job import Job

source, scores, output = map(Path, sys.argv[1:])
output.mkdir()
params = ExportParams("Hopper/bc/dense/seed-0", opset=18, sparse_initializers=True)
for event in export_policy([Job(params, {"source": source, "scores": scores}, output, commit="0123abc")]):
    pass
"""


@pytest.mark.slow
def test_a_dense_policy_has_one_file_the_same_wherever_it_is_made_and_nothing_is_said(tmp_path):
    source = save_agent(tmp_path / "agent.safetensors", "bc", 0)
    params = ExportParams("Hopper/bc/dense/seed-0", opset=18, sparse_initializers=True)
    scores = save_scores(tmp_path / "scores.csv", [])  # as of an agent without an environment
    row = export_to(tmp_path / "here", export_policy, params, source=source, scores=scores)
    path = tmp_path / "here" / "hopper-bc-dense-seed-0.onnx"
    assert (row["form"], row["opset"], row["file"]) == ("dense", "18", path.name)
    assert onnx.load(path).opset_import[0].version == 18
    agent = make_agent("bc", 0)
    state, latents = torch.rand(7, 11), torch.randn(7, 6)
    action = load_onnx(path)(state=state.numpy(), latents=latents.numpy())["action"]
    expected = agent.algorithm.act(agent.networks, state[None], latents[None])[0]
    np.testing.assert_allclose(action, expected.numpy(), rtol=0, atol=2e-6)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, source, scores, "there"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    here, there = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("here", "there")
    )
    assert set(here) == {path.name, "exports.csv"}
    assert here == there


def test_a_graph_that_computes_something_else_is_refused(tmp_path, monkeypatch):
    def spoil(network, card, opset, to_onnx=export.to_onnx):
        graph = to_onnx(network, card, opset)
        weight = max(graph.graph.initializer, key=lambda initializer: len(initializer.raw_data))
        values = onnx.numpy_helper.to_array(weight) * np.float32(1.1)
        weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
        return graph

    monkeypatch.setattr(export, "to_onnx", spoil)
    source = save_agent(tmp_path / "agent.safetensors", "bc", 0)
    scores = save_scores(tmp_path / "scores.csv", [1])
    with pytest.raises(ArithmeticError, match=r"a-b\.onnx: .* off by .* times PyTorch's own error"):
        export_to(tmp_path / "out", export_policy, ExportParams("a/b", 20), source=source, scores=scores)
    assert not (tmp_path / "out" / "exports.csv").exists()


def test_a_style_takes_pictures_of_any_size(exported):
    (row,) = rows_of(exported.style.out)
    assert (row["kind"], row["form"], row["file"]) == ("style", "dense", "styles-dots.onnx")
    run, module = load_onnx(exported.style.out / row["file"]), open_network(exported.style.source).module
    for shape in ((1, 3, 64, 64), (1, 3, 33, 47), (3, 3, 5, 6), (2, 3, 50, 8)):
        pictures = torch.rand(shape)
        stylised = run(pictures=pictures.numpy())["stylised"]
        # 5x6 pixels are 2x2 before the residual blocks, where a norm may divide by next to nothing: float32
        # is off by 2e-5 there, and by 1e-6 in larger pictures.
        tolerance = 1e-4 if shape[2] == 5 else 1e-5
        with torch.no_grad():
            np.testing.assert_allclose(stylised, module(pictures).numpy(), rtol=0, atol=tolerance)
    graph = onnx.load(exported.style.out / row["file"])
    assert axes(graph.graph.input) == {"pictures": ["batch", 3, "height", "width"]}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["efficientnet_lite0", "resnet50"])
def test_a_classifier_is_exported_with_its_source(tmp_path, architecture):
    params = ClassifierParams(architecture, "random", ExportParams(f"classifiers/{architecture}", 20))
    row = export_to(tmp_path / "out", export_classifier, params)
    assert row["file"] == f"classifiers-{architecture}.onnx"
    run, source = load_onnx(tmp_path / "out" / row["file"]), tmp_path / "out" / "classifier.safetensors"
    assert run.card.source_sha256 == sha256_of(source)
    assert run.card.details["architecture"] == architecture
    pictures = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        expected = open_network(source).module(pictures).numpy()
    np.testing.assert_allclose(run(pictures=pictures.numpy())["logits"], expected, rtol=1e-4, atol=1e-4)
