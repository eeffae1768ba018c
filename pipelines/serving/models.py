"""Which graphs are served, and their way to the replicas, which share no disk with the driver."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.deployment.onnx_model import GraphCard, Kind, OnnxModel, load_onnx, read_card
from tasks.errors import UserError

FORMS = ("compacted", "dense", "masked")
"""The one to serve, of a network that was exported in several: equal ones, the smallest first."""
Cards = Mapping[Kind, Mapping[str, GraphCard]]
"""By kind and name: of a policy its cell, of a style its own, of a classifier its architecture."""


@dataclass(frozen=True)
class Model:
    """A graph to serve."""

    card: GraphCard
    path: Path

    @property
    def name(self) -> str:
        """What requests call it."""
        match self.card.kind:
            case "policy" | "actor":
                return self.card.cell
            case "style":
                return str(self.card.details["style"])
            case "classifier":
                return str(self.card.details["architecture"])


def find_models(directory: Path) -> list[Model]:
    """The graphs to serve below a directory, one of each network, by name; every one can be opened.

    Classifiers of random weights and actors alone are left out: they are there to be timed.

    Raises:
        UserError: there is none, or a file is damaged or another project's.
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
    # Of one form, the plain file before the one of sparse initialisers, whose name goes on: equal, but for
    # the time to open it.
    return FORMS.index(model.card.form), model.path.stem


def _only_timed(card: GraphCard) -> bool:
    untrained = card.kind == "classifier" and card.details["weights"]["source"] == "random"
    return untrained or card.kind == "actor"


def cards_of(models: list[Model]) -> Cards:
    """What is served, without the graphs."""
    cards: dict[Kind, dict[str, GraphCard]] = {"style": {}, "policy": {}, "classifier": {}}
    for model in models:
        cards[model.card.kind][model.name] = model.card
    return cards


def contents_of(models: list[Model], kind: Kind) -> dict[str, bytes]:
    """The files of one kind, by name, to be sent to replicas."""
    return {model.name: model.path.read_bytes() for model in models if model.card.kind == kind}


def open_models(contents: Mapping[str, bytes], threads: int) -> dict[str, OnnxModel]:
    """On a replica: the graphs, ready to run on some threads."""
    return dict(_opened(contents, threads))


def _opened(contents: Mapping[str, bytes], threads: int) -> Iterator[tuple[str, OnnxModel]]:
    with tempfile.TemporaryDirectory(prefix="singleshot-serving-") as directory:
        path = Path(directory) / "model.onnx"
        for name, content in contents.items():
            path.write_bytes(content)
            yield name, load_onnx(path, threads)
