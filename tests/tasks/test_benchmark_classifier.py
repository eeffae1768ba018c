"""The report's experiment, by runtimes in processes of their own."""

import csv
import io
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from skimage.data import chelsea, coffee
from waiting import PATIENCE_S

from singleshot.errors import UserError
from singleshot.export import isolation
from singleshot.export.classifier import fetch_classifier, save_classifier
from singleshot.export.model_files import open_network
from singleshot.export.runtimes import RuntimeAt, runtimes_here
from singleshot.export.to_onnx import card_of
from singleshot.io.images import encode_jpeg
from singleshot.style.datasets.photos import ARCHIVE
from tasks.benchmark import BenchmarkParams, InputSize
from tasks.benchmark_classifier import ClassifierBenchmarkParams, benchmark_classifier
from tasks.job import Job, Metrics, Progress


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
    onnx.save(with_card(onnx.load_from_string(graph.getvalue()), directory), directory / "classifier.onnx")
    return {
        "photos": directory,
        "source": directory / "classifier.safetensors",
        "onnx": directory / "classifier.onnx",
    }


def with_card(graph: onnx.ModelProto, directory: Path) -> onnx.ModelProto:
    """The graph with the card of the classifier in `directory`."""
    source = directory / "classifier.safetensors"
    card_of(open_network(source, "dense"), "classifiers/a", "0" * 40, source).attach(graph)
    return graph


def run(
    photos: tuple[str, ...], runtimes: Sequence[RuntimeAt], inputs: dict[str, Path], output: Path, k: int = 5
) -> tuple[list[dict[str, str]], list[dict[str, str]], Metrics]:
    """The rows of classification.csv and of timings.csv, and the last metrics."""
    measured = BenchmarkParams(tuple(runtimes), (1,), (InputSize(1),), 0.02, PATIENCE_S, rollout_steps=1)
    params = ClassifierBenchmarkParams(photos, measured, k)
    *events, metrics = benchmark_classifier([Job(params, inputs, output)])
    assert Progress(1) in events
    assert isinstance(metrics, Metrics)
    answers, timings = (read_rows(output / f"{name}.csv") for name in ("classification", "timings"))
    return answers, timings, metrics


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_onnxruntime_sees_what_pytorch_sees(inputs: dict[str, Path], tmp_path: Path) -> None:
    """A cat is a cat, coffee is coffee, and as the report prepares them neither is what it was."""
    photos = ("chelsea", "coffee")
    rows, (timing,), metrics = run(photos, runtimes_here(["onnxruntime"]), inputs, tmp_path, k=1000)
    assert (timing["model"], timing["status"], timing["batch"]) == ("classifiers/a", "ok", "1")
    assert 0 < float(timing["max_abs_error"]) <= float(timing["tolerance"])
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
    unchanged = sum(first[photo, "right"][0] == first[photo, "reported"][0] for photo in photos) / 2
    assert metrics.values == {"reported_same_answer": unchanged, "onnxruntime_same_top5": 1.0}


def test_a_runtime_that_fails_or_is_not_there_costs_its_own_rows(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "WORKER", "toy_worker")
    toys = [RuntimeAt(name, "1") for name in ("toy-raises", "toy-missing", "toy")] + [RuntimeAt("tvm", None)]
    (*no_answers, last), timings, metrics = run(("coffee",), toys, inputs, tmp_path, k=2)
    failed, missing, *answers = no_answers
    outcomes = {row["runtime"]: (row["status"], row["reason"]) for row in timings}
    for row in (failed, missing, last):
        assert (row["status"], row["reason"]) == outcomes[row["runtime"]]
        assert row["photo"] == row["label"] == ""
    assert [row["status"] for row in (failed, missing, last)] == ["failed", "unavailable", "unavailable"]
    assert [(row["preprocessing"], row["rank"]) for row in answers] == [
        ("right", "1"), ("right", "2"), ("reported", "1"), ("reported", "2"),
    ]  # fmt: skip
    assert metrics.values == {"reported_same_answer": 0.0, "toy_same_top5": 1.0}


def test_a_graph_that_computes_something_else_is_told(inputs: dict[str, Path], tmp_path: Path) -> None:
    """It answers, but isn't timed."""
    other = tmp_path / "other.safetensors"
    save_classifier(*fetch_classifier("efficientnet_lite0", "random"), other)
    runtimes = runtimes_here(["onnxruntime"])
    rows, (timing,), metrics = run(("coffee",), runtimes, inputs | {"source": other}, tmp_path)
    assert {row["same_top5_as_torch"] for row in rows} == {"False"}
    assert metrics.values["onnxruntime_same_top5"] == 0
    assert (timing["status"], timing["p50_ms"]) == ("failed", "")


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
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(with_card(model, inputs["source"].parent), tmp_path / "nan.onnx")
    given = inputs | {"onnx": tmp_path / "nan.onnx"}
    (row,), (timing,), _ = run(("coffee",), runtimes_here(["onnxruntime"]), given, tmp_path)
    assert timing["status"] == "failed"
    assert (row["status"], row["reason"]) == ("failed", "returned NaN or infinity")


def test_a_photo_that_is_not_there(inputs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no photo 'tea'; known are chelsea, coffee"):
        run(("tea",), runtimes_here(["onnxruntime"]), inputs, tmp_path)
