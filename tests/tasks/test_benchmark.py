import csv
import io
import warnings
import zipfile
from collections import defaultdict
from itertools import product

import onnx
import pytest
import torch
from skimage.data import chelsea, coffee
from waiting import PATIENCE_S

from singleshot.errors import UserError
from singleshot.export.classifier import fetch_classifier, save_classifier
from singleshot.export.measurement import InputSize, Measurement
from singleshot.export.model_files import open_network
from singleshot.export.runtimes import installed_version
from singleshot.io.images import encode_jpeg
from singleshot.io.to_onnx import card_of
from singleshot.job import Job, Metrics, Progress
from singleshot.style.datasets.photos import ARCHIVE
from tasks.benchmark import BenchmarkParams, benchmark

MEASURED = ("p50_ms", "p90_ms", "p99_ms", "cpu_p50_ms", "calls")
COLUMNS = {
    *MEASURED,
    *("model", "runtime", "device", "threads", "batch", "size_px", "form", "file_bytes", "version"),
    *("max_abs_error", "max_rel_error", "tolerance", "same_choices", "precision", "status", "reason"),
    *("compile_s", "first_call_ms", "disturbed_turns", "peak_memory_mb"),
}
ONE = InputSize(batch=1)


@pytest.fixture(scope="session")
def policy(exported):
    """A job's inputs."""
    return {"onnx": next(exported.bcq.out.glob("*-compacted.onnx")), "source": exported.bcq.source}


@pytest.fixture(scope="session")
def style(exported):
    """A job's inputs."""
    return {"onnx": exported.style.out / "styles-dots.onnx", "source": exported.style.source}


def run(inputs, output, names, threads=(1,), sizes=(ONE,), photos=()):
    """The rows of timings.csv, and the events."""
    output.mkdir()
    here = {name: None if name == "toy-absent" else "1" for name in names}
    how = Measurement(threads=threads, rollout_steps=5, seconds=0.02, time_limit_s=PATIENCE_S)
    events = list(benchmark([Job(BenchmarkParams(here, sizes, how, photos=photos), inputs, output)]))
    return read_rows(output / "timings.csv"), events


def read_rows(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_runtime_that_fails_leaves_the_rest_of_the_table_intact(policy, tmp_path, toys):
    names = ["toy-raises", "toy", "toy-dies", "toy-wrong", "toy-absent", "toy-dies-later", "toy-missing"]
    rows, events = run(policy, tmp_path / "out", names, sizes=(ONE, InputSize(2)))
    assert [(row["runtime"], row["batch"]) for row in rows] == [(name, b) for b in "12" for name in names]
    assert set(rows[0]) == COLUMNS
    for row in rows:
        assert row["model"] == "Hopper/bcq/random-0.98/seed-0"
        assert (row["form"], row["threads"], row["size_px"]) == ("compacted", "1", "")
        if row["runtime"] == "toy":
            assert (row["status"], row["reason"], row["same_choices"]) == ("ok", "", "1.0")
            assert float(row["p50_ms"]) <= float(row["p90_ms"]) <= float(row["p99_ms"])
            assert 0 < float(row["max_abs_error"]) <= float(row["tolerance"])
        else:
            assert all(row[column] == "" for column in MEASURED)
    outcomes = {row["runtime"]: (row["status"], row["reason"]) for row in rows[len(names) :]}
    assert outcomes["toy-raises"] == ("failed", f"ValueError: no operator Foo in {'line ' * 33}…")
    assert outcomes["toy-dies"] == ("failed", "killed by SIGSEGV: Fatal: bad kernel")
    assert outcomes["toy-dies-later"] == ("failed", "ended with status 3")
    assert outcomes["toy-missing"] == ("unavailable", "no such accelerator")
    assert outcomes["toy-absent"] == (
        "unavailable",
        "not installed; `make compilers` installs the optional runtimes",
    )
    assert outcomes["toy-wrong"][0] == "failed"
    wrong = next(row for row in rows if row["runtime"] == "toy-wrong")
    assert float(wrong["max_abs_error"]) == pytest.approx(0.04, rel=0.01)
    assert "off by 0.04" in wrong["reason"]
    metrics = [event for event in events if isinstance(event, Metrics)]
    assert [(event.step, list(event.values)) for event in metrics] == [
        (batch, ["toy_p50_ms_threads_1"]) for batch in (1, 2)
    ]
    assert [event.fraction for event in events if isinstance(event, Progress)] == [0.5, 1.0]


def test_pictures_are_of_the_size_and_number_asked_for(style, tmp_path):
    sizes = (InputSize(1, 20), InputSize(2, 33))
    rows, events = run(style, tmp_path / "out", ["onnxruntime"], threads=(1, 0, 1), sizes=sizes)
    per_thread_count = [("1", "20"), ("2", "33")]
    assert [(row["batch"], row["size_px"]) for row in rows][:2] == per_thread_count
    assert {row["status"] for row in rows} == {"ok"}
    assert len({(row["threads"], row["size_px"]) for row in rows}) == len(rows)
    assert [event.step for event in events if isinstance(event, Metrics)][:2] == [20, 33]
    assert int(rows[0]["file_bytes"]) == style["onnx"].stat().st_size


@pytest.mark.parametrize("kind", ["policy", "style"])
@pytest.mark.parametrize(
    "names",
    [
        ["torch", "onnxruntime", "openvino-f32", "xla"],
        pytest.param(["torch-compile", "tvm"], marks=pytest.mark.slow),
        pytest.param(["iree"], marks=pytest.mark.slow),
        pytest.param(["tensorflow"], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_runtimes_compute_what_pytorch_does_in_float64(request, tmp_path, kind, names):
    if missing := [name for name in names if installed_version(name) is None]:
        pytest.skip(f"not installed: {missing}; run `make compilers`")
    inputs = request.getfixturevalue(kind)
    given = inputs["onnx"].read_bytes()
    sizes = (InputSize(3, 24), InputSize(1, 24)) if kind == "style" else (InputSize(3), ONE)
    rows, _ = run(inputs, tmp_path / "out", names, sizes=sizes)
    assert [row["runtime"] for row in rows] == 2 * names
    for row in rows:
        assert (row["status"], row["reason"], row["precision"], row["device"]) == ("ok", "", "float32", "cpu")
        # Values are up to 1: some ten roundings of 6e-8 each, in XLA's convolutions thirty.
        assert float(row["max_abs_error"]) < 3e-6
        assert float(row["max_rel_error"]) < 3e-6
    assert inputs["onnx"].read_bytes() == given  # onnx2tf would write to it


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A job's inputs."""
    directory = tmp_path_factory.mktemp("inputs")
    with zipfile.ZipFile(directory / ARCHIVE, "w") as archive:
        for name, pixels in {"chelsea": chelsea(), "coffee": coffee()}.items():
            picture = torch.from_numpy(pixels.copy()).permute(2, 0, 1) / 255
            archive.writestr(f"{name}.jpg", encode_jpeg(picture, quality=95))
    module, card = fetch_classifier("efficientnet_lite0", "package")
    save_classifier(module, card, directory / "classifier.safetensors")
    graph, pictures = io.BytesIO(), torch.zeros(1, 3, 224, 224)
    # The older exporter, which takes 2 s: how graphs of this project are made is tested elsewhere.
    with warnings.catch_warnings(action="ignore"):
        names = {"input_names": ["pictures"], "output_names": ["logits"]}
        torch.onnx.export(module, (pictures,), graph, dynamo=False, **names)
    made, source = onnx.load_from_string(graph.getvalue()), directory / "classifier.safetensors"
    card_of(open_network(source), "classifiers/a", "0" * 40, source).attach(made)
    onnx.save(made, directory / "classifier.onnx")
    return {"photos": directory, "source": source, "onnx": directory / "classifier.onnx"}


def ask(inputs, output, names, photos):
    """The rows of classification.csv and of timings.csv, and the last metrics."""
    timings, (*_, metrics) = run(inputs, output, names, photos=photos)
    return read_rows(output / "classification.csv"), timings, metrics.values


def test_onnxruntime_sees_what_pytorch_sees(classifier, tmp_path, monkeypatch):
    """A cat is a cat, coffee is coffee, and as the report prepares them neither is what it was."""
    monkeypatch.setattr("tasks.benchmark.ANSWERS", 1000)
    photos = ("chelsea", "coffee")
    rows, (timing,), metrics = ask(classifier, tmp_path / "out", ["onnxruntime"], photos)
    assert (timing["model"], timing["status"], timing["batch"]) == ("classifiers/a", "ok", "1")
    assert 0 < float(timing["max_abs_error"]) <= float(timing["tolerance"])
    answers = defaultdict(dict)
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
    assert metrics == {"reported_same_answer": unchanged, "onnxruntime_same_top5": 1.0}


def test_a_runtime_that_does_not_answer_has_one_row(classifier, tmp_path, toys, monkeypatch):
    monkeypatch.setattr("tasks.benchmark.ANSWERS", 2)
    names = ["toy-raises", "toy-missing", "toy", "toy-absent"]
    (failed, missing, *answers, absent), timings, metrics = ask(
        classifier, tmp_path / "out", names, ("coffee",)
    )
    outcomes = {row["runtime"]: (row["status"], row["reason"]) for row in timings}
    for row, status in ((failed, "failed"), (missing, "unavailable"), (absent, "unavailable")):
        assert (row["status"], row["reason"]) == outcomes[row["runtime"]]
        assert (row["status"], row["photo"], row["label"]) == (status, "", "")
    assert [(row["preprocessing"], row["rank"]) for row in answers] == [*product(("right", "reported"), "12")]
    assert metrics == {"reported_same_answer": 0.0, "toy_same_top5": 1.0}


def test_a_graph_that_computes_something_else_answers_but_is_not_timed(classifier, tmp_path):
    other = tmp_path / "other.safetensors"
    save_classifier(*fetch_classifier("efficientnet_lite0", "random"), other)
    given = classifier | {"source": other}
    rows, (timing,), metrics = ask(given, tmp_path / "out", ["onnxruntime"], ("coffee",))
    assert {row["same_top5_as_torch"] for row in rows} == {"False"}
    assert metrics["onnxruntime_same_top5"] == 0
    assert (timing["status"], timing["p50_ms"]) == ("failed", "")


def test_a_photo_that_is_not_there(classifier, tmp_path):
    with pytest.raises(UserError, match="tea"):
        ask(classifier, tmp_path / "out", ["onnxruntime"], ("tea",))
