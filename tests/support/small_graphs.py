"""Graphs with cards, each so small that NumPy says in a line what it computes: no exporter, no PyTorch."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from singleshot.export.classifier import PREPROCESSING, ClassifierCard, WeightsOrigin
from singleshot.io.onnx_model import GraphCard, GraphInput
from singleshot.rl.environments import Environment

STATE, ACTION, LATENT, SAMPLES = 17, 6, 12, 3
LABELS = tuple(f"class {index}" for index in range(9))
BC, BCQ = "HalfCheetah/bc/dense/seed-0", "HalfCheetah/bcq/dense/seed-0"
_random = np.random.default_rng(0)
W_STATE = _random.standard_normal((STATE, ACTION), np.float32) / 4
W_LATENT = _random.standard_normal((LATENT, ACTION), np.float32) / 4
W_COLOUR = _random.standard_normal((3, len(LABELS)), np.float32)


def stylised(picture: NDArray) -> NDArray:
    """Of a picture (3, H, W): its negative."""
    return 1 - picture


def bc_action(state: Sequence[float]) -> NDArray:
    """(6,) of (17,)."""
    return np.tanh(np.float32(state) @ W_STATE)


def bcq_action(state: Sequence[float], latents: NDArray) -> NDArray:
    """(6,) of (17,) and (3, 12): of no critic, but with what a BCQ policy takes."""
    return np.tanh(np.float32(state) @ W_STATE + latents.mean(axis=0) @ W_LATENT)


def logits(picture: NDArray) -> NDArray:
    """(9,) of a normalised picture (3, 224, 224): of its mean colour."""
    return picture.mean(axis=(1, 2)) @ W_COLOUR


def write_all(directory: Path) -> None:
    """A style `swirls`, the policies `BC` and `BCQ`, and a classifier, where the export leaves such."""
    write_style(directory / "styles/swirls/swirls.onnx", "swirls")
    write_bc(directory / BC / "bc.onnx")
    _write_bcq(directory / BCQ / "bcq.onnx")
    write_classifier(directory / "classifiers/efficientnet_lite0/efficientnet_lite0.onnx", "package")


def write_style(path: Path, style: str) -> None:
    pictures = GraphInput("pictures", ("batch", 3, "height", "width"), 0, 1)
    card = _card("style", f"styles/{style}", (pictures,), ("stylised",), {"style": style})
    nodes = [helper.make_node("Sub", ["one", "pictures"], ["stylised"])]
    _write(path, card, nodes, {"one": np.float32(1)})


def write_bc(path: Path, cell: str = BC, form: str = "dense", *, latents: bool = False) -> None:
    """A policy of the state alone, or of latents too, as BC's is."""
    inputs = [GraphInput("state", ("batch", STATE), -5, 5)]
    nodes = [helper.make_node("MatMul", ["state", "w_state"], ["of_state"])]
    if latents:
        inputs.append(GraphInput("latents", ("batch", LATENT), -3, 3))
        nodes.append(helper.make_node("MatMul", ["latents", "w_latent"], ["of_latents"]))
    nodes += [
        helper.make_node("Sum", ["of_state", "of_latents"][: len(inputs)], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["action"]),
    ]
    card = _card("policy", cell, tuple(inputs), ("action",), _about(cell.split("/")[0], "bc"), form)
    weights = {"w_state": W_STATE} | ({"w_latent": W_LATENT} if latents else {})
    _write(path, card, nodes, weights)


def _about(environment: str, algorithm: str) -> dict[str, Any]:
    """Details of a policy's card, as the export writes them."""
    where = Environment(f"{environment}-v5")
    sizes = {"action_size": ACTION, "bounds": None}
    return {"environment": environment, "algorithm": algorithm, **sizes, "environment_spec": asdict(where)}


def _write_bcq(path: Path) -> None:
    inputs = (
        GraphInput("state", ("batch", STATE), -5, 5),
        GraphInput("latents", ("batch", "samples", LATENT), -3, 3),
    )
    details = {**_about("HalfCheetah", "bcq"), "samples": SAMPLES, "latent_size": LATENT, "phi": 0.05}
    card = _card("policy", BCQ, inputs, ("action", "choice"), details)
    nodes = [
        helper.make_node("MatMul", ["state", "w_state"], ["of_state"]),
        helper.make_node("ReduceMean", ["latents", "axis"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "w_latent"], ["of_latents"]),
        helper.make_node("Add", ["of_state", "of_latents"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["action"]),
        helper.make_node("ArgMax", ["action"], ["choice"], axis=1, keepdims=0),
    ]
    _write(path, card, nodes, {"w_state": W_STATE, "w_latent": W_LATENT, "axis": np.int64([1])})


def write_classifier(path: Path, source: str) -> None:
    weights = WeightsOrigin(source, "a test", "none")
    card = ClassifierCard("efficientnet_lite0", weights, PREPROCESSING["efficientnet_lite0"], LABELS)
    pictures = GraphInput("pictures", ("batch", 3, 224, 224), -3, 3)
    nodes = [
        helper.make_node("ReduceMean", ["pictures", "axes"], ["colour"], keepdims=0),
        helper.make_node("MatMul", ["colour", "w_colour"], ["logits"]),
    ]
    _write(
        path,
        _card("classifier", "classifiers/efficientnet_lite0", (pictures,), ("logits",), asdict(card)),
        nodes,
        {"axes": np.int64([2, 3]), "w_colour": W_COLOUR},
    )


def _card(kind, cell, inputs, outputs, details, form="dense") -> GraphCard:
    origin = {"commit": "0" * 40, "source_sha256": "0" * 64}
    return GraphCard(
        kind=kind, cell=cell, form=form, inputs=inputs, outputs=outputs, details=details, **origin
    )


def _write(path: Path, card: GraphCard, nodes: list, constants: dict) -> None:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(each.name, TensorProto.FLOAT, each.shape) for each in card.inputs],
        [_output(name) for name in card.outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    card.attach(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def _output(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, TensorProto.INT64 if name == "choice" else TensorProto.FLOAT, None
    )
