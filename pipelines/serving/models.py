"""The graphs that are served."""

import contextlib
import io
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.catalog.paths import LEARNED, PAINTINGS
from pipelines.engine.execution import temporary_directory
from singleshot.errors import UserError
from singleshot.export.onnx_model import GraphCard, Kind, OnnxModel, load_onnx, read_card

logger = logging.getLogger(__name__)

FORMS = ("compacted", "dense", "masked")
"""Forms of a network in the order of preference: they compute the same, and the first is the smallest."""
TRIED = {"batch": 2, "samples": 2, "height": 32, "width": 40}
"""Sizes of the inputs with which each graph is tried."""
THUMBNAIL_PX = 320
"""Longest side of a painting as it is shown."""
_VARIANT = re.compile(r"/(\w+(?:-shuffled)?)-(0\.\d+)(?:/|$)")
Cards = Mapping[Kind, Mapping[str, GraphCard]]
"""Cards by kind and name: a policy's cell, a style's name, a classifier's architecture."""


@dataclass(frozen=True)
class Model:
    """A graph to serve."""

    card: GraphCard
    path: Path
    painting: bytes | None = None
    """A style's painting as a small JPEG file, if it is known."""

    @property
    def name(self) -> str:
        """Its name in requests."""
        match self.card.kind:
            case "policy":
                return self.card.cell
            case "style":
                return self.card.cell.removeprefix("styles/")
            case "classifier":
                return str(self.card.details["architecture"])


def pruner_of(card: GraphCard) -> str | None:
    """The pruner of a network, from the name of its cell; None if it was not pruned."""
    found = _VARIANT.search(card.cell)
    return found[1] if found else None


def find_models(directory: Path, learned: Sequence[Path] = ()) -> list[Model]:
    """The graphs to serve below a directory, and those of learned styles, sorted by name.

    There is one for each network. Each is opened and computed once, as a test. Classifiers with random
    weights and separate actors, which exist to be timed, are left out.

    Raises:
        UserError: there is none, or a file is damaged or was written by another project.
    """
    files = (path for path in sorted(directory.rglob("*.onnx")) if not path.is_fifo())
    models = [Model(read_card(path), path) for path in (*files, *learned)]
    chosen = {model.card.cell: model for model in sorted(models, key=_preference, reverse=True)}
    served = sorted((model for model in chosen.values() if not _only_timed(model.card)), key=lambda m: m.name)
    if not served:
        raise UserError(f"{directory}: no graph to serve; export some with `dvc repro export`")
    for model in served:
        _try(load_onnx(model.path, threads=1))
    return [Model(model.card, model.path, _painting(model)) for model in served]


def _try(model: OnnxModel) -> None:
    """Raise UserError if the graph can't be computed, or only for one input at once, or gives no numbers."""
    sizes, generator = TRIED | dict(model.card.details), np.random.default_rng(0)
    outputs = model(
        **{
            each.name: generator.uniform(each.test_low, each.test_high, each.shape_at(sizes)).astype(
                np.float32
            )
            for each in model.card.inputs
        }
    )
    if not all(np.isfinite(output).all() for output in outputs.values()):
        raise UserError(f"{model.path}: its answers are no numbers, nor are some weights; export it again")


def _painting(model: Model) -> bytes | None:
    if model.card.kind != "style":
        return None
    style = model.name.split("/")[0]
    files = (folder / style / "painting.png" for folder in (PAINTINGS, LEARNED))
    file = next(filter(Path.exists, files), None)
    if file is None:
        return None
    # Imported here, as it imports PyTorch, and the server's processes import this module before they respond.
    from singleshot.io.images import open_picture

    try:
        with open_picture(file) as opened:
            picture = opened.convert("RGB")
    except UserError as error:
        logger.warning("%s is served without its painting: %s", model.name, error)
        return None
    picture.thumbnail((THUMBNAIL_PX, THUMBNAIL_PX))
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=90)
    return content.getvalue()


def _preference(model: Model) -> tuple[int, str]:
    # Within a form, the plain file comes before that with sparse initialisers, whose name is longer: both
    # compute the same, but the plain one opens faster.
    return FORMS.index(model.card.form), model.path.stem


def _only_timed(card: GraphCard) -> bool:
    return card.kind == "classifier" and card.details["weights"]["source"] == "random"


def cards_of(models: Sequence[Model]) -> Cards:
    """The cards of models."""
    cards: dict[Kind, dict[str, GraphCard]] = {"style": {}, "policy": {}, "classifier": {}}
    for model in models:
        cards[model.card.kind][model.name] = model.card
    return cards


def contents_of(models: Sequence[Model]) -> list[tuple[bytes, bytes | None]]:
    """The graphs and paintings of models, to be sent to machines that don't share this one's disk."""
    return [(model.path.read_bytes(), model.painting) for model in models]


@contextlib.contextmanager
def received(contents: Sequence[tuple[bytes, bytes | None]]) -> Iterator[list[Model]]:
    """The models that :func:`contents_of` sent, as files that exist as long as the context."""
    with temporary_directory() as directory:
        models = []
        for i, (content, painting) in enumerate(contents):
            path = directory / f"{i}.onnx"
            path.write_bytes(content)
            models.append(Model(read_card(path), path, painting))
        yield models
