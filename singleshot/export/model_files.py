"""Trained networks of every kind, opened from their files as modules ready to be exported or run."""

from dataclasses import asdict
from pathlib import Path

from singleshot.errors import UserError
from singleshot.export.classifier import load_classifier
from singleshot.export.onnx_model import Form, GraphInput
from singleshot.export.policies import open_policy
from singleshot.export.to_onnx import Network
from singleshot.io.tensor_file import read_metadata
from singleshot.style.model_file import load_model

NORMALISED = 3.0
"""Normalised pictures, which have about zero mean and unit variance, are about within ± this."""


def open_network(source: Path, form: Form) -> Network:
    """Open an agent's policy, a style or a classifier, whichever `source` holds.

    Raises:
        UserError: the file is missing, damaged or another kind of file, or has no such form.
    """
    kind = _kind(source)
    if kind == "agent":
        return open_policy(source, form)
    if kind == "style_model":
        return open_style(source, form)
    network = open_classifier(source)
    if form != network.form:
        raise UserError(f"{source}: a classifier has no {form} form; ask for `dense`")
    return network


def open_style(source: Path, form: Form = "dense") -> Network:
    """Open a style's network. Raises UserError if `source` isn't a style's model, or has no such form."""
    module, card = load_model(source)
    if form != "dense":
        raise UserError(f"{source}: a style has no {form} form; ask for dense")
    pictures = GraphInput("pictures", ("batch", 3, "height", "width"), 0.0, 1.0)
    return Network(
        kind="style",
        form=form,
        module=module,
        inputs=(pictures,),
        outputs=("stylised",),
        sparsity=0.0,
        details={"style": card.style},
        meanings={
            "pictures": "RGB from 0 to 1, of any height and width: (picture, channel, row, column).",
            "stylised": "The pictures in the style, as the input.",
        },
    )


def open_classifier(source: Path) -> Network:
    """Open a classifier. Raises UserError if `source` isn't a classifier's file."""
    module, card = load_classifier(source)
    side = card.preprocessing.size_px
    pictures = GraphInput("pictures", ("batch", 3, side, side), -NORMALISED, NORMALISED)
    wanted = card.preprocessing
    meanings = {
        "pictures": f"RGB from 0 to 1, scaled ({wanted.interpolation}) to a short side of "
        f"{wanted.resize_px} px, of which the middle {side} x {side} px; then {list(wanted.mean)} are "
        f"subtracted from the channels, which are divided by {list(wanted.std)}.",
        "logits": "A number for each class; softmax gives probabilities. Names: `labels` in the metadata.",
    }
    return Network(
        kind="classifier",
        form="dense",
        module=module,
        inputs=(pictures,),
        outputs=("logits",),
        sparsity=0.0,
        details=asdict(card),
        meanings=meanings,
        licence=card.weights.licence,
    )


def _kind(source: Path) -> str:
    """The key of the file's metadata: `agent`, `style_model` or `classifier`."""
    if not source.is_file():
        raise UserError(f"{source}: no such file; give the file of an agent, a style or a classifier")
    found = {"agent", "style_model", "classifier"} & set(read_metadata(source))
    if len(found) != 1:
        raise UserError(
            f"{source}: neither an agent nor a style nor a classifier; give an agent.safetensors, a style's "
            "model.safetensors or a classifier.safetensors"
        )
    return found.pop()
