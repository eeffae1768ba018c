"""The graphs that are served."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from singleshot import __version__
from singleshot.errors import UserError, explained
from singleshot.io.folders import LEARNED, PAINTINGS, user_cache
from singleshot.io.onnx_model import GraphCard, Kind, load_onnx, read_card, unbatched_shapes
from singleshot.io.whole_file import sha256_of, whole_file
from singleshot.rl import shipped as shipped_agents
from singleshot.style import shipped as shipped_styles
from singleshot.style.datasets.paintings import DRAWN_FILES

log = logging.getLogger(__name__)
FORMS = ("compacted", "dense", "masked")
"""Forms of a network in the order of preference: they compute the same, and the first is the smallest."""
OPSET = 20
"""Version of ONNX's operators in the graphs that are made here."""


@dataclass(frozen=True)
class Model:
    """A graph to serve."""

    card: GraphCard
    path: Path
    painting: Path | None = None
    """The file of a style's painting, if it is there."""

    @property
    def name(self) -> str:
        """Its name in requests: a policy's cell, a style's name, a classifier's architecture."""
        if self.card.kind == "classifier":
            return str(self.card.details["architecture"])
        return self.card.cell.removeprefix("styles/")


class Policy:
    """A policy's graph, opened to act."""

    def __init__(self, model: Model) -> None:
        self.name, self.card, self._graph = model.name, model.card, load_onnx(model.path, threads=1)
        with explained(f"{model.path}: not a policy's graph", "export it again"):
            shapes = unbatched_shapes(model.card.inputs, model.card.details)
            (self.state_size,), self._latents_shape = shapes["state"], shapes.get("latents")
            self._action_shape = 1, int(model.card.details["action_size"])
        self(np.zeros(self.state_size, np.float32), np.random.default_rng(0))  # before it is served

    def __call__(self, state: NDArray[np.float32], generator: np.random.Generator) -> NDArray[np.float32]:
        """The action (A,) in a state (S,), with new latents where the policy takes any.

        Raises:
            UserError: the state is so large that the action isn't finite.
        """
        inputs = {"state": state[None]}
        if self._latents_shape:
            inputs["latents"] = generator.standard_normal((1, *self._latents_shape), np.float32)
        return self._graph.compute("action", self._action_shape, **inputs)[0]


def of_kind(models: Sequence[Model], kind: Kind) -> dict[str, Model]:
    """The models of a kind by name."""
    return {model.name: model for model in models if model.card.kind == kind}


@contextlib.contextmanager
def left_out_if_broken() -> Iterator[None]:
    """A context that reads a graph, and ends with a warning if it can't be read."""
    try:
        yield
    except UserError as error:
        log.warning("%s; it isn't served", error)


def find_models(directory: Path, made: Sequence[Path] = (), *, again: bool = False) -> list[Model]:
    """The graphs to serve below a directory, and those of :func:`made_graphs`, sorted by name.

    If two networks have one name, the directory's is served.

    There is one for each network. Classifiers with random weights, which exist to be timed, are left out, and
    if files are read `again`, also what is broken or gone by now.

    Raises:
        UserError: there is none, or a file is damaged or was written by another project.
    """
    files = [path for path in sorted(directory.rglob("*.onnx")) if not path.is_fifo()]
    found: list[Model] = []
    for path in (*files, *made):
        with left_out_if_broken() if again else contextlib.nullcontext():
            found.append(Model(read_card(path), path))
    chosen: dict[str, Model] = {}
    for model in found:
        if model.path in made:
            chosen.setdefault(model.name, model)
        elif not (
            model.card.kind == "classifier" and model.card.details["weights"].get("source") == "random"
        ):
            there = chosen.setdefault(model.name, model)
            # Of one form, the plain file comes before that with sparse initialisers, which opens slower.
            chosen[model.name] = min(there, model, key=lambda it: (FORMS.index(it.card.form), it.path.stem))
    if not (chosen or again):
        raise UserError(f"{directory}: no graph to serve; export some with `dvc repro export`")
    return [Model(chosen[name].card, chosen[name].path, _painting(chosen[name])) for name in sorted(chosen)]


def _painting(model: Model) -> Path | None:
    """The painting in the folder of a style's pipeline or learning, or the drawn one of that name."""
    if model.card.kind != "style":
        return None
    files = [folder / model.name / "painting.png" for folder in (PAINTINGS, LEARNED)]
    if model.name in DRAWN_FILES:
        files.append(DRAWN_FILES[model.name])
    return next(filter(Path.exists, files), None)


def made_graphs(learned: Path = LEARNED) -> list[Path]:
    """The graphs of shipped networks and of those of `learn-style`, made if the user's cache lacks them.

    Raises:
        UserError: a network's file is damaged.
    """
    styles = dict(shipped_styles.FILES)
    styles |= {
        source.parent.name: source
        for source in sorted(filter(Path.is_file, learned.glob("*/model.safetensors")))
    }
    sources = {f"styles/{name}": source for name, source in styles.items()} | dict(shipped_agents.FILES)
    return [_graph(name, source) for name, source in sources.items()]


def _graph(name: str, source: Path) -> Path:
    graph = user_cache("graphs") / f"{sha256_of(source)}.onnx"
    if not graph.exists():
        import onnx

        from singleshot.export.model_files import open_network
        from singleshot.io.to_onnx import card_of, to_onnx

        print(f"{name}: exporting it as ONNX, once, in some 10 s", flush=True)
        network = open_network(source, "dense" if name.startswith("styles/") else "compacted")
        card = card_of(network, name, f"singleshot {__version__}", source)
        with whole_file(graph) as partial:
            onnx.save(to_onnx(network, card, OPSET), partial)
    return graph
