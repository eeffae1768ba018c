"""The report's experiment, by runtimes in processes of their own."""

import csv
import io
import re
import warnings
import zipfile
from collections import defaultdict
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from skimage.data import chelsea, coffee

from tasks.data.images import encode_jpeg
from tasks.deployment.classifier import fetch_classifier, save_classifier
from tasks.deployment.classify import ClassifyParams, classify
from tasks.deployment.runtimes import RuntimeAt, runtimes_here
from tasks.errors import UserError
from tasks.job import Job, Metrics, Progress
from tasks.style.datasets.photos import ARCHIVE


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("inputs")
    with zipfile.ZipFile(directory / ARCHIVE, "w") as archive:
        for name, pixels in {"chelsea": chelsea(), "coffee": coffee()}.items():
            picture = torch.from_numpy(pixels.copy()).permute(2, 0, 1) / 255
            archive.writestr(f"{name}.jpg", encode_jpeg(picture, quality=95))
    module, card = fetch_classifier("efficientnet_lite0", "package")
    save_classifier(module, card, directory / "classifier.safetensors")
    graph = io.BytesIO()
    # The older exporter, which takes 2 s: how graphs of this project are made is tested elsewhere.
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            module,
            (torch.zeros(1, 3, 224, 224),),
            graph,
            dynamo=False,
            input_names=["pictures"],
            output_names=["logits"],
        )
    (directory / "classifier.onnx").write_bytes(graph.getvalue())
    return {
        "photos": directory,
        "source": directory / "classifier.safetensors",
        "onnx": directory / "classifier.onnx",
    }


def run(
    params: ClassifyParams, inputs: dict[str, Path], output: Path
) -> tuple[list[dict[str, str]], Metrics]:
    *progress, metrics = classify([Job(params, inputs, output)])
    assert progress[-1] == Progress(1)
    assert isinstance(metrics, Metrics)
    with (output / "classification.csv").open() as file:
        return list(csv.DictReader(file)), metrics


def test_onnxruntime_sees_what_pytorch_sees(inputs: dict[str, Path], tmp_path: Path) -> None:
    """A cat is a cat, coffee is coffee, and as the report prepares them neither is what it was."""
    params = ClassifyParams(("chelsea", "coffee"), runtimes_here(["onnxruntime"]), 60, k=1000)
    rows, metrics = run(params, inputs, tmp_path)
    answers: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in rows:
        assert (row["status"], row["reason"], row["same_top5_as_torch"]) == ("ok", "", "True")
        answers[row["photo"], row["preprocessing"]][row["label"]] = float(row["probability"])
    for probabilities in answers.values():
        assert len(probabilities) == 1000
        assert sum(probabilities.values()) == pytest.approx(1, abs=1000 * 0.5e-6)
        assert list(probabilities.values()) == sorted(probabilities.values(), reverse=True)
    first = {key: list(probabilities)[:2] for key, probabilities in answers.items()}
    assert set(first["chelsea", "right"]) == {"tiger cat", "Egyptian cat"}
    assert first["coffee", "right"][0] == "espresso"
    assert first["coffee", "reported"][0] == "cup"
    assert answers["coffee", "right"]["espresso"] > 0.9 > 0.2 > answers["coffee", "reported"]["espresso"]
    unchanged = sum(first[photo, "right"][0] == first[photo, "reported"][0] for photo in params.photos) / 2
    assert metrics.values == {"reported_same_answer": unchanged, "onnxruntime_same_top5": 1.0}


def test_a_runtime_that_fails_or_is_not_there_costs_its_own_rows(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(inputs["onnx"].read_bytes()[:1000])
    runtimes = (*runtimes_here(["onnxruntime", "torch-cuda", "torch"]), RuntimeAt("tvm", None))
    params = ClassifyParams(("coffee",), runtimes, 60, k=2)
    (failed, no_gpu, *answers, not_installed), metrics = run(params, inputs | {"onnx": damaged}, tmp_path)
    assert (failed["runtime"], failed["status"], failed["photo"]) == ("onnxruntime", "failed", "")
    assert "damaged.onnx" in failed["reason"]
    for row, runtime, reason in (
        (no_gpu, "torch-cuda", "GPU|CPUs"),
        (not_installed, "tvm", "make compilers"),
    ):
        assert (row["runtime"], row["status"], row["label"]) == (runtime, "unavailable", "")
        assert re.search(reason, row["reason"])
    assert [(row["preprocessing"], row["rank"]) for row in answers] == [
        ("right", "1"), ("right", "2"), ("reported", "1"), ("reported", "2"),
    ]  # fmt: skip
    assert metrics.values == {"reported_same_answer": 0.0, "torch_same_top5": 1.0}


def test_a_graph_that_computes_something_else_is_told(inputs: dict[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_classifier(*fetch_classifier("efficientnet_lite0", "random"), other)
    rows, metrics = run(
        ClassifyParams(("coffee",), runtimes_here(["onnxruntime"]), 60), inputs | {"source": other}, tmp_path
    )
    assert {row["same_top5_as_torch"] for row in rows} == {"False"}
    assert metrics.values["onnxruntime_same_top5"] == 0


def test_nan_is_no_answer(inputs: dict[str, Path], tmp_path: Path) -> None:
    given, logits = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in {"pictures": (1, 3, 224, 224), "logits": (1, 3)}.items()
    )
    nodes = [
        helper.make_node("GlobalAveragePool", ["pictures"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("Sub", ["flat", "flat"], ["zero"]),
        helper.make_node("Div", ["zero", "zero"], ["logits"]),
    ]
    graph = helper.make_graph(nodes, "nan", [given], [logits])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10),
        tmp_path / "nan.onnx",
    )
    (row,), _ = run(
        ClassifyParams(("coffee",), runtimes_here(["onnxruntime"]), 60),
        inputs | {"onnx": tmp_path / "nan.onnx"},
        tmp_path,
    )
    assert (row["status"], row["reason"]) == ("failed", "returned NaN or infinity")


def test_a_runtime_that_hangs_has_failed(inputs: dict[str, Path], tmp_path: Path) -> None:
    (row,), _ = run(ClassifyParams(("coffee",), runtimes_here(["onnxruntime"]), 0.01), inputs, tmp_path)
    assert (row["status"], row["reason"]) == ("failed", "no answer within 0.01 s")


def test_a_photo_that_is_not_there(inputs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no photo 'tea'; known are chelsea, coffee"):
        run(ClassifyParams(("tea",), runtimes_here(["onnxruntime"]), 60), inputs, tmp_path)
