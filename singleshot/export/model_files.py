"""Trained networks of every kind, opened from their files as modules ready to be exported or run."""

from dataclasses import asdict
from pathlib import Path

from singleshot.errors import UserError
from singleshot.export.classifier import load_classifier
from singleshot.io.onnx_model import Form, GraphCard, GraphInput
from singleshot.io.tensor_file import read_metadata
from singleshot.io.to_onnx import Network
from singleshot.rl.agents import load_agent
from singleshot.rl.policies import forms_of, policy_network
from singleshot.sparse.packed import read_model
from singleshot.style.model_file import load_model

NORMALISED = 3.0
"""Normalised pictures, which have about zero mean and unit variance, are about within ± this."""


def open_network(source: Path, form: Form = "dense") -> Network:
    """Open an agent's policy, a style or a classifier, whichever `source` holds.

    Raises:
        UserError: the file is missing, damaged or another kind of file, or has no such form.
    """
    keys = read_model(source).metadata.keys() if source.suffix == ".packed" else read_metadata(source).keys()
    if "agent" in keys:
        agent = load_agent(source)
        forms = forms_of(agent.spec)
        if form in forms:
            return policy_network(agent, form)
        raise UserError(f"{source}: {agent.spec} has no {form} form; ask for {' or '.join(forms)}")
    if form != "dense":
        raise UserError(f"{source}: only pruned agents have a {form} form; ask for dense")
    if "style_model" in keys:
        return _style(source)
    if "classifier" in keys:
        return _classifier(source)
    raise UserError(
        f"{source}: neither an agent nor a style nor a classifier; give an agent.safetensors, a style's "
        "model.safetensors or a classifier.safetensors"
    )


def _style(source: Path) -> Network:
    module, card = load_model(source)
    meanings = {
        "pictures": "RGB from 0 to 1, of any height and width: (picture, channel, row, column).",
        "stylised": "The pictures in the style, as the input.",
    }
    made = GraphCard(
        kind="style",
        inputs=(GraphInput("pictures", ("batch", 3, "height", "width"), 0.0, 1.0),),
        outputs=("stylised",),
        details={"style": card.style},
        meanings=meanings,
    )
    return Network(module, made)


def _classifier(source: Path) -> Network:
    module, card = load_classifier(source)
    wanted = card.preprocessing
    side = wanted.size_px
    meanings = {
        "pictures": f"RGB from 0 to 1, scaled ({wanted.interpolation}) to a short side of "
        f"{wanted.resize_px} px, of which the middle {side} x {side} px; then {list(wanted.mean)} are "
        f"subtracted from the channels, which are divided by {list(wanted.std)}.",
        "logits": "A number for each class; softmax gives probabilities. Names: `labels` in the metadata.",
    }
    made = GraphCard(
        kind="classifier",
        inputs=(GraphInput("pictures", ("batch", 3, side, side), -NORMALISED, NORMALISED),),
        outputs=("logits",),
        details=asdict(card),
        meanings=meanings,
        licence=card.weights.licence,
    )
    return Network(module, made)
