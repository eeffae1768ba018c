"""`python -m pipelines classify`: a user's own pictures, classified by an exported network."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from pipelines.catalog.paths import GRAPHS
from pipelines.cli.media import STANDARD, find_media
from singleshot.errors import UserError
from singleshot.export.classifier import Answer, ClassifierCard, preprocess, top
from singleshot.export.onnx_model import OnnxModel, load_onnx
from singleshot.io.images import NamedBytes, read_rgb

CLASSIFIERS = GRAPHS / "classifiers"


class Classifier:
    """An exported classifier, run by onnxruntime."""

    def __init__(self, model: OnnxModel, card: ClassifierCard) -> None:
        self.model, self.card = model, card

    @classmethod
    def open(cls, path: Path) -> "Classifier":
        """Read a graph that the stage export wrote.

        Raises:
            UserError: the file is missing or damaged, or is not a classifier.
        """
        model = load_onnx(path)
        if model.card.kind != "classifier" or model.card.outputs != ("logits",):
            raise UserError(f"{path}: a {model.card.kind}, not a classifier; give one of {CLASSIFIERS}")
        try:
            return cls(model, ClassifierCard.of(model.card.details))
        except ValidationError as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{path}: its card is damaged ({reason}); export it again") from error

    def __call__(self, picture: Tensor, k: int) -> list[Answer]:
        """The `k` most probable classes of a picture (3, H, W) in [0, 1], the most probable first.

        Raises:
            UserError: the graph can't be computed, or its outputs don't match the classes of its card.
        """
        pictures = preprocess(picture, self.card.preprocessing)[None].numpy()
        logits, labels = self.model(pictures=pictures)["logits"], self.card.labels
        if logits.shape != (1, len(labels)):
            raise UserError(
                f"{self.model.path}: logits {logits.shape} for {len(labels)} classes; export it again"
            )
        if not np.isfinite(logits).all():
            raise UserError(
                f"{self.model.path}: its answers are no numbers, nor are some weights; export it again"
            )
        return top(torch.from_numpy(logits[0]), labels, min(k, len(labels)))


def classify_pictures(inputs: Sequence[str], model: Path | None, k: int) -> bool:
    """Print the `k` most probable classes of each picture; return whether all could be read.

    `inputs` are pictures, directories (with everything below them), glob patterns, and "-" for a picture on
    standard input. `model` is an exported classifier; None stands for the one that this pipeline exported. A
    picture that can't be read is reported on standard error, and the others are still classified.

    Raises:
        UserError: there is no such picture or model; it is raised before any work.
    """
    media = find_media([text for text in inputs if text != STANDARD], Path(STANDARD))
    files = [Path(STANDARD)] * (STANDARD in inputs) + [medium.file for medium in media.of("picture")]
    if not files:
        raise UserError(f"{', '.join(inputs)}: no picture there, only videos; correct the path")
    classifier = Classifier.open(model or default_model())
    readable = True
    for file in files:
        try:
            answers = classifier(read_rgb(_standard_input() if str(file) == STANDARD else file), k)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            readable = False
            continue
        print(file)
        for answer in answers:
            print(f"{answer.probability:8.1%}  {answer.label}")
    print("".join(f"{words}\n" for words in media.words()), end="", file=sys.stderr)
    return readable


def default_model() -> Path:
    """The only classifier that this pipeline exported.

    Raises:
        UserError: there is none, or more than one.
    """
    models = sorted(CLASSIFIERS.rglob("*.onnx"))
    if not models:
        raise UserError(f"{CLASSIFIERS}: no classifier in it; run `dvc repro export`, or give --model")
    if len(models) > 1:
        raise UserError(f"{CLASSIFIERS}: has {', '.join(map(str, models))}; choose one with --model")
    return models[0]


def _standard_input() -> NamedBytes:
    """The whole standard input, as a seekable file."""
    return NamedBytes(sys.stdin.buffer.read(), "standard input")
