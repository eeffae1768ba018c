"""The graphs that are served."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.engine.scratch import scratch_directory
from singleshot.errors import UserError
from singleshot.export.onnx_model import GraphCard, Kind, load_onnx, read_card

FORMS = ("compacted", "dense", "masked")
"""Forms of a network in the order of preference: they compute the same, and the first is the smallest."""
Cards = Mapping[Kind, Mapping[str, GraphCard]]
"""Cards by kind and name: a policy's cell, a style's name, a classifier's architecture."""


@dataclass(frozen=True)
class Model:
    """A graph to serve."""

    card: GraphCard
    path: Path

    @property
    def name(self) -> str:
        """Its name in requests."""
        match self.card.kind:
            case "policy" | "actor":
                return self.card.cell
            case "style":
                return str(self.card.details["style"])
            case "classifier":
                return str(self.card.details["architecture"])


def find_models(directory: Path) -> list[Model]:
    """The graphs to serve below a directory, one for each network, sorted by name. Each is opened as a test.

    Classifiers with random weights and separate actors, which exist to be timed, are left out.

    Raises:
        UserError: there is none, or a file is damaged or was written by another project.
    """
    models = [Model(read_card(path), path) for path in sorted(directory.rglob("*.onnx"))]
    chosen = {model.card.cell: model for model in sorted(models, key=_preference, reverse=True)}
    served = sorted((model for model in chosen.values() if not _only_timed(model.card)), key=lambda m: m.name)
    if not served:
        raise UserError(f"{directory}: no graph to serve; export some with `dvc repro export_onnx`")
    for model in served:
        load_onnx(model.path, threads=1)
    return served


def _preference(model: Model) -> tuple[int, str]:
    # Within a form, the plain file comes before that with sparse initialisers, whose name is longer: both
    # compute the same, but the plain one opens faster.
    return FORMS.index(model.card.form), model.path.stem


def _only_timed(card: GraphCard) -> bool:
    untrained = card.kind == "classifier" and card.details["weights"]["source"] == "random"
    return untrained or card.kind == "actor"


def cards_of(models: Sequence[Model]) -> Cards:
    """The cards of models."""
    cards: dict[Kind, dict[str, GraphCard]] = {"style": {}, "policy": {}, "classifier": {}}
    for model in models:
        cards[model.card.kind][model.name] = model.card
    return cards


def contents_of(models: Sequence[Model]) -> list[bytes]:
    """The files of models, to be sent to machines that don't share this one's disk."""
    return [model.path.read_bytes() for model in models]


@contextlib.contextmanager
def received(contents: Sequence[bytes]) -> Iterator[list[Model]]:
    """The models that :func:`contents_of` sent, as files that exist as long as the context."""
    with scratch_directory() as directory:
        paths = [directory / f"{i}.onnx" for i in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        yield [Model(read_card(path), path) for path in paths]
