"""A user's pictures, by a graph small enough to know its answers: how red, green and blue a picture is."""

import io
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from pipelines.cli.classify import classify_pictures
from singleshot.errors import UserError
from singleshot.export.classifier import ClassifierCard, Preprocessing, WeightsOrigin
from singleshot.export.onnx_model import GraphCard, GraphInput

MODEL = Path("models/onnx/classifiers/toy/toy.onnx")
PREPROCESSING = Preprocessing(4, 4, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bilinear")
CARD = ClassifierCard(
    "resnet50", WeightsOrigin("random", "by hand", "none"), PREPROCESSING, ("red", "green", "blue")
)


def write_graph(path: Path, **changes: Any) -> None:
    """The logits are the means of the channels."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["pictures"], ["means"]),
        helper.make_node("Flatten", ["means"], ["logits"]),
    ]
    shapes = {"pictures": ("batch", 3, 4, 4), "logits": ("batch", 3)}
    given, answered = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()
    )
    graph = helper.make_model(
        helper.make_graph(nodes, "toy", [given], [answered]),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    inputs = (GraphInput("pictures", shapes["pictures"], -1, 1),)
    card = GraphCard(
        "classifier", "classifiers/toy", "dense", 0, "none", "0" * 64, inputs, ("logits",), asdict(CARD)
    )
    replace(card, **changes).attach(graph)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(graph, path)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with an exported classifier and pictures."""
    monkeypatch.chdir(tmp_path)
    write_graph(MODEL)
    Path("album/summer").mkdir(parents=True)
    Image.new("RGB", (30, 20), (255, 0, 0)).save("album/rose.png")
    Image.new("RGB", (20, 30), (0, 255, 51)).save("album/summer/meadow.jpg", quality=100, subsampling=0)
    Image.new("RGB", (8, 8), (0, 0, 255)).save("sky.bmp")


def softmax(*logits: float) -> list[str]:
    total = sum(math.exp(logit) for logit in logits)
    return [f"{100 * math.exp(logit) / total:.1f}%" for logit in logits]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_answers_are_the_softmax_of_the_pictures_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert classify_pictures(["album/rose.png"], None, 3)
    red, other, _ = softmax(1, -1, -1)
    assert lines(capsys) == ["album/rose.png", f"{red} red", f"{other} green", f"{other} blue"]


def test_columns_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    classify_pictures(["album/rose.png"], None, 2)
    _, *answers = capsys.readouterr().out.splitlines()
    assert [answer.index(name) for answer, name in zip(answers, ("red", "green"), strict=True)] == [10, 10]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["album"], ["album/rose.png", "album/summer/meadow.jpg"]),
        (["album/*/*.jpg", "sky.bmp"], ["album/summer/meadow.jpg", "sky.bmp"]),
        (["album/rose.png", "album/*.png"], ["album/rose.png"]),
    ],
)
def test_files_directories_and_patterns(
    inputs: Sequence[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert classify_pictures(inputs, MODEL, 1)
    labels = {"rose": "red", "meadow": "green", "sky": "blue"}
    found = lines(capsys)
    assert found[::2] == expected
    assert [answer.split()[1] for answer in found[1::2]] == [labels[Path(file).stem] for file in expected]


def test_a_damaged_picture_is_one_line_and_the_others_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    Path("album/broken.png").write_bytes(Path("album/rose.png").read_bytes()[:40])
    assert not classify_pictures(["album"], None, 1)
    captured = capsys.readouterr()
    assert captured.err.startswith("error: album/broken.png: can't be read as a picture")
    assert captured.err.count("\n") == 1
    assert captured.out.count("album/") == 2


@pytest.mark.parametrize("text", ["nowhere", "nothing/*.png", "empty"])
def test_inputs_without_pictures_are_told(text: str) -> None:
    Path("empty").mkdir()
    with pytest.raises(UserError, match="no such file" if text == "nowhere" else "no picture or video there"):
        classify_pictures(["album", text], None, 1)


def test_a_name_that_contains_two_stars_is_told() -> None:
    with pytest.raises(UserError, match=r"^album/\*\*\.png: \*\* can only be an entire path component"):
        classify_pictures(["album/**.png"], None, 1)


def test_which_model_has_to_be_plain() -> None:
    write_graph(Path("models/onnx/classifiers/other/other.onnx"))
    with pytest.raises(UserError, match=r"other\.onnx, .*toy\.onnx; choose one with --model"):
        classify_pictures(["album"], None, 1)
    assert classify_pictures(["album"], MODEL, 1)


def test_without_a_model_the_fix_is_told() -> None:
    MODEL.unlink()
    with pytest.raises(UserError, match="no classifier in it; run `dvc repro export`"):
        classify_pictures(["album"], None, 1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"kind": "style"}, "a style, not a classifier"), ({"details": {}}, "its card is damaged")],
)
def test_other_graphs_are_refused(changes: dict[str, Any], reason: str) -> None:
    write_graph(MODEL, **changes)
    with pytest.raises(UserError, match=reason):
        classify_pictures(["album"], None, 1)


@pytest.mark.parametrize(("content", "readable"), [(None, True), (b"no picture", False)])
def test_a_picture_on_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, content: bytes | None, readable: bool
) -> None:
    given = io.BytesIO(content or Path("album/rose.png").read_bytes())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(given, encoding="utf-8"))
    assert classify_pictures(["-"], None, 1) == readable
    told = capsys.readouterr()
    if readable:
        assert " ".join(told.out.split()) == f"- {softmax(1, -1, -1)[0]} red"
    else:
        assert told.err.startswith("error: standard input: can't be read as a picture")
