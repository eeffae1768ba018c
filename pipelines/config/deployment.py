"""The part of the configuration that is about deployment (seed 2)."""

from dataclasses import dataclass
from typing import Annotated

import pydantic
from annotated_types import Ge, Gt, Le, MinLen

from tasks.deployment.classifier import TRAINED, Architecture, WeightsSource
from tasks.deployment.runtimes import RUNTIMES
from tasks.errors import UserError
from tasks.offline_rl.agents import AlgorithmName
from tasks.offline_rl.environments import TaskName


def _known_runtime(name: str) -> str:
    if name not in RUNTIMES:
        raise ValueError(f"no such runtime; known are {', '.join(RUNTIMES)}")
    return name


@dataclass(frozen=True)
class ExportConfig:
    """How networks become ONNX files."""

    opset: Annotated[int, Ge(18), Le(23)]
    """Of the operator set; what PyTorch's exporter writes."""
    sparse_initializers: bool
    """Write a smaller file of each pruned network too, which not every runtime reads."""


@dataclass(frozen=True)
class ClassifierConfig:
    """The ImageNet classifier of the report's experiment."""

    architecture: Architecture
    weights: WeightsSource

    def __post_init__(self) -> None:
        known = ("random", TRAINED[self.architecture])
        if self.weights not in known:
            raise UserError(
                f"deployment.classifier.weights: {self.weights} hasn't got {self.architecture}'s; "
                f"set it to {' or '.join(known)}"
            )


@dataclass(frozen=True)
class BenchmarkedAgents:
    """Which agents of the sweep are timed: how long a policy takes depends on little else than its shape."""

    tasks: Annotated[tuple[TaskName, ...], MinLen(1)]
    algorithms: Annotated[tuple[AlgorithmName, ...], MinLen(1)]
    pruners: tuple[str, ...]
    """Beside the dense agents."""
    sparsities: Annotated[tuple[Annotated[float, Ge(0)], ...], MinLen(1)]
    seeds: Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1)]


@dataclass(frozen=True)
class BenchmarkConfig:
    """What is run by which runtime, how, and for how long."""

    runtimes: Annotated[tuple[Annotated[str, pydantic.AfterValidator(_known_runtime)], ...], MinLen(1)]
    threads: Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1)]
    """0 are all cores."""
    agents: BenchmarkedAgents
    batches: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)]
    """Of states."""
    sizes_px: Annotated[tuple[Annotated[int, Ge(32)], ...], MinLen(1)]
    """Sides of the square pictures that are stylised."""
    photos: Annotated[tuple[str, ...], MinLen(1)]
    """To classify: names of photos in style.samples."""
    rollout_steps: Annotated[int, Ge(1)]
    """Of the episode whose states a policy is compared on."""
    seconds: Annotated[float, Gt(0)]
    """To time one network on one runtime at one size for, warm-up and compilation apart."""
    time_limit_s: Annotated[float, Gt(0)]
    """For one runtime to prepare one network at one size; then it has failed."""


@dataclass(frozen=True)
class DeploymentConfig:
    """Seed 2: every trained network through every compiler."""

    export: ExportConfig
    classifier: ClassifierConfig
    benchmark: BenchmarkConfig
