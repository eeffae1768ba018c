"""ONNX files of this project: the metadata of a graph, and running the graph with onnxruntime."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import onnx
import onnxruntime
from annotated_types import Ge, Le, MinLen
from numpy.typing import NDArray
from pydantic import AfterValidator, TypeAdapter

from singleshot.errors import UserError, explained, in_a_line

Kind = Literal["policy", "style", "classifier"]
Form = Literal["dense", "masked", "compacted"]
"""A network that was never pruned, one with its pruned weights as zeros, or one without its dead units."""
MOST_NUMBERS = 10**6
"""Most numbers in an input of a policy for one state; BCQ's latents have 100 times 12 at most."""
LICENCE = "MIT, as Singleshot's; if the network learned from your own data or painting, their licence as well"


@dataclass(frozen=True)
class GraphInput:
    """One float32 input of a graph."""

    name: str
    shape: tuple[int | str, ...]
    """Sizes of the axes; a name where any size is allowed (`batch`, `samples`, `height`, `width`)."""
    test_low: float
    test_high: float
    """Comparisons and timings draw uniform values from this range; what an input is, its meaning says."""

    def shape_at(self, sizes: Mapping[str, Any]) -> tuple[int, ...]:
        """The shape where the named axes have these sizes."""
        return tuple(int(sizes[axis]) if isinstance(axis, str) else axis for axis in self.shape)


def unbatched_shapes(inputs: Sequence[GraphInput], details: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of a policy's inputs by name, without the batch; a card's `details` have the other sizes.

    Raises:
        ValueError: one is empty or too large.
    """
    shapes = {each.name: each.shape_at({"batch": 1, **details})[1:] for each in inputs}
    for name, shape in shapes.items():
        if not all(1 <= size <= MOST_NUMBERS for size in (*shape, math.prod(shape))):
            raise ValueError(f"{name} of shape {shape}")
    return shapes


@dataclass(frozen=True)
class AgentScore:
    """What an agent scored in its training: in the last evaluation, which is that of the weights in the file,
    and in the last few, which differ as it still learns."""

    measure: Literal["D4RL score", "return"]
    """`return` for an environment without reference returns; a D4RL score of 0 is a random policy, 100 D4RL's
    expert."""
    mean: float
    low: float | None
    """The 95 % interval's lower end, by Student's t over the evaluations; None if there is but one."""
    high: float | None
    evaluations: int
    last: float
    """The score of the last evaluation; the other fields are of the mean of all."""

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.measure} {self.mean:.1f} in one evaluation"
        interval = f"95 % interval {self.low:.1f} to {self.high:.1f}"
        mean = f"{self.mean:.1f} ({interval}) as the mean of the last {self.evaluations}"
        return f"{self.measure} {self.last:.1f} in its last evaluation, {mean}"


def _file_name(cell: str) -> str:
    if cell and not (
        cell.isprintable() and len(cell.encode()) <= 255 and {"", ".", ".."}.isdisjoint(cell.split("/"))
    ):
        raise ValueError("its cell is no name of a file below a folder")
    return cell


@dataclass(frozen=True)
class PolicyDetails:
    """What readers of a policy's card rely on."""

    environment: str
    action_size: Annotated[int, Ge(1), Le(MOST_NUMBERS)]


@dataclass(frozen=True)
class ClassifierDetails:
    """What readers of a classifier's card rely on."""

    architecture: str
    weights: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class GraphCard:
    """What a graph is and where it comes from: each field is a key of the file's metadata, as JSON."""

    kind: Kind
    cell: Annotated[str, AfterValidator(_file_name)] = ""
    """Cell of the network, e.g. `HalfCheetah/bcq/snip-0.95/seed-0`."""
    form: Form = "dense"
    sparsity: float = 0.0
    """Fraction of weights that were pruned before training."""
    commit: str = ""
    """Git commit of the code that exported it."""
    source_sha256: str = ""
    """SHA-256 of the file that the network was exported from."""
    inputs: tuple[GraphInput, ...]
    outputs: Annotated[tuple[str, ...], MinLen(1)]
    details: Mapping[str, Any]
    """Details by kind. policy: `environment`, `algorithm`, its `config`, and for BCQ `samples` and
    `latent_size`. style: `style`. classifier: `architecture`, `weights`, `preprocessing` and `labels`."""

    meanings: Mapping[str, str] = field(default_factory=dict)
    """What each input and output is, for somebody who has only the file."""

    score: AgentScore | None = None
    """Of a policy that was evaluated."""
    licence: str = LICENCE

    def attach(self, graph: onnx.ModelProto) -> None:
        """Write the card into a graph's metadata, instead of the metadata that is there.

        Viewers show the documentation of the graph, which has score and licence, and of its inputs and
        outputs, which has the meanings.
        """
        scored = f"{self.score}. " if self.score else ""
        graph.doc_string = f"{self.cell}, {self.form}. {scored}Licence: {self.licence}."
        for value in (*graph.graph.input, *graph.graph.output):
            value.doc_string = self.meanings.get(value.name, "")
        del graph.metadata_props[:]
        onnx.helper.set_model_props(graph, {key: json.dumps(value) for key, value in asdict(self).items()})


class OnnxModel:
    """A graph ready to run on the CPU, with only onnxruntime."""

    def __init__(self, path: Path, card: GraphCard, session: onnxruntime.InferenceSession) -> None:
        self.path = path
        self.card = card
        self._session = session

    def __call__(self, **inputs: NDArray) -> dict[str, NDArray]:
        """Outputs by name.

        Raises:
            UserError: the graph can't be computed: it takes other inputs, or more memory than there is.
        """
        with explained(f"{self.path}: can't be computed", "export it again, or free memory"):
            outputs = self._session.run(list(self.card.outputs), inputs)
        return dict(zip(self.card.outputs, outputs, strict=True))

    def compute(self, output: str, shape: tuple[int, ...], **inputs: NDArray) -> NDArray[np.float32]:
        """The output of that name, finite numbers of this shape.

        Raises:
            UserError: the graph can't be computed, or gives something else.
        """
        found = self(**inputs).get(output)
        floats = isinstance(found, np.ndarray) and found.dtype == np.float32 and np.isfinite(found).all()
        if found is not None and floats and found.shape == shape:  # no texts, no list of tensors
            return found
        raise UserError(f"{self.path}: its {output} isn't finite or of another size; export it again")


def load_onnx(path: Path, threads: int = 0, give_back_memory: bool = False) -> OnnxModel:
    """Open a graph that this project exported; `threads` = 0 means all cores.

    onnxruntime keeps the memory of its largest run for later runs. With `give_back_memory`, it frees the
    memory after each run, and its threads sleep while they wait: on idle cores, stylising a picture takes as
    long.

    Raises:
        UserError: the file is missing, damaged, or another project's.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # less severe errors are raised as exceptions, too
    if give_back_memory:
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    card = read_card(path)
    with explained(f"{path}: onnxruntime can't load it", "export it again"):
        # With its fallback, onnxruntime would print five lines on standard output and try the same again.
        session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    return OnnxModel(path, card, session)


def read_card(path: Path) -> GraphCard:
    """Read the card from a graph's metadata, without preparing the graph to run.

    Raises:
        UserError: the file is missing, damaged, or another project's.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; give an .onnx file, or export it first")
    with explained(f"{path}: not a whole ONNX file", "export it again"):
        model = onnx.load(path, load_external_data=False)
    if model.functions or model.training_info or any(map(_leads_on, _inside(model))):
        has = "a loop, a branch, a function or weights in another file"
        raise UserError(f"{path}: has {has}, unlike this project's networks; export it again")
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    try:
        values = {field.name: json.loads(metadata[field.name]) for field in fields(GraphCard)}
        json.dumps(values, ensure_ascii=False).encode()  # all texts are Unicode
        card = TypeAdapter(GraphCard).validate_python(values)
        if relied_on := {"policy": PolicyDetails, "classifier": ClassifierDetails}.get(card.kind):
            TypeAdapter(relied_on).validate_python(card.details)
        return card
    except (KeyError, ValueError, RecursionError) as error:  # pydantic's, too, are ValueErrors
        what = "exported by another version of" if "source_sha256" in metadata else "not a graph of"
        reason = in_a_line(error).partition(" [type=")[0]
        raise UserError(f"{path}: {what} this project ({reason}); export it again") from error


def _inside(message: Any) -> Iterator[Any]:
    """A message of Protocol Buffers, and all messages that it consists of."""
    yield message
    for kind, value in message.ListFields():
        if kind.type == kind.TYPE_MESSAGE:
            for each in [value] if hasattr(value, "ListFields") else value:
                yield from _inside(each)


def _leads_on(message: Any) -> bool:
    """Whether it has a graph of its own, as loops and branches, or its numbers are in another file."""
    if isinstance(message, onnx.AttributeProto):
        return message.HasField("g") or bool(message.graphs)
    return isinstance(message, onnx.TensorProto) and message.data_location == onnx.TensorProto.EXTERNAL
