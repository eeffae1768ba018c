"""The part of the configuration that is about deployment (Hyyppä 2019)."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le, MinLen

from pipelines.config.offline_rl import AlgorithmName, checked
from singleshot.errors import UserError
from singleshot.export.classifier import TRAINED, ClassifierName, ClassifierSource
from singleshot.export.measurement import Measurement
from singleshot.export.runtimes import RUNTIMES


def _runtime(name: str) -> None:
    if name not in RUNTIMES:
        raise ValueError(f"no such runtime; known are {', '.join(RUNTIMES)}")


RuntimeName = Annotated[str, checked(_runtime)]


@dataclass(frozen=True)
class ExportConfig:
    """How networks become ONNX files."""

    opset: Annotated[int, Ge(18), Le(23)]
    """Version of ONNX's operator set, among those that PyTorch's exporter writes."""
    sparse_initializers: bool
    """Whether to also write a smaller file of each pruned network, which not every runtime can read."""
    seeds: tuple[Annotated[int, Ge(0)], ...] | None
    """Seeds of the sweep whose agents are exported; with null, all of them."""


@dataclass(frozen=True)
class ClassifierConfig:
    """The ImageNet classifier of the report's experiment."""

    architecture: ClassifierName
    weights: ClassifierSource

    def __post_init__(self) -> None:
        known = ("random", TRAINED[self.architecture])
        if self.weights not in known:
            raise UserError(
                f"deployment.classifier.weights: {self.weights} has no weights of {self.architecture}; "
                f"set it to {' or '.join(known)}"
            )


@dataclass(frozen=True)
class BenchmarkedAgents:
    """The agents of the sweep that are timed. A policy's latency depends on little more than its shape."""

    environments: Annotated[tuple[str, ...], MinLen(1)] | None
    """With null, the first environment of the sweep."""
    algorithms: Annotated[tuple[AlgorithmName, ...], MinLen(1)]
    pruners: tuple[str, ...]
    """Pruners of the timed agents. Dense agents are timed if `sparsities` has 0."""
    sparsities: Annotated[tuple[Annotated[float, Ge(0)], ...], MinLen(1)]
    seeds: Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1)]


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig(Measurement):
    """The networks that are timed, the runtimes, and the time for each."""

    runtimes: Annotated[tuple[RuntimeName, ...], MinLen(1)]
    agents: BenchmarkedAgents
    batches: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)]
    """Batch sizes at which policies are timed, in states."""
    sizes_px: Annotated[tuple[Annotated[int, Ge(32)], ...], MinLen(1)]
    """Side lengths of the square pictures that are stylised, in pixels."""
    photos: Annotated[tuple[str, ...], MinLen(1)]
    """Names of the photos in style.samples to classify."""


@dataclass(frozen=True)
class DeploymentConfig:
    """Export of the trained networks, and their benchmark on all runtimes (Hyyppä 2019)."""

    export: ExportConfig
    classifier: ClassifierConfig
    benchmark: BenchmarkConfig
