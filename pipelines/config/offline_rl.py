"""The part of the configuration that is about offline RL (Arnob et al. 2021)."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import pydantic
from annotated_types import Ge, Lt, MinLen

from singleshot.errors import UserError
from singleshot.pruning import masks
from singleshot.pruning.dynamic import METHODS
from singleshot.pruning.masks import PruningConfig
from singleshot.pruning.variant import SMALL
from singleshot.rl.algorithm import algorithm_class, algorithm_names, module_of
from singleshot.rl.data.transitions import DataConfig
from singleshot.rl.environments import Environment
from singleshot.rl.evaluation.play import EvaluationConfig
from singleshot.rl.networks import Execution
from singleshot.sparse.packed import ValuesName
from tasks.reporting.statistics import BootstrapConfig
from tasks.train_agents import TrainingConfig

T = TypeVar("T")
TRAINED = (SMALL, *METHODS)
"""Agents that get their few weights otherwise than from a pruner before training."""


def checked(find: Callable[[str], object]) -> pydantic.AfterValidator:
    """Accept the names for which `find` does not raise a ValueError."""

    def check(name: str) -> str:
        find(name)
        return name

    return pydantic.AfterValidator(check)


def _agent_pruner(name: str) -> None:
    if name not in TRAINED:
        try:
            masks.module_of(name)
        except UserError as error:
            raise UserError(f"{error}, and {', '.join(TRAINED)}") from None


AlgorithmName = Annotated[str, checked(module_of)]
AgentPrunerName = Annotated[str, checked(_agent_pruner)]


@dataclass(frozen=True)
class SweepConfig:
    """The grid of agents in each environment: all combinations, but one agent, `dense`, for sparsity 0."""

    algorithms: Annotated[tuple[AlgorithmName, ...], MinLen(1)]
    pruners: Annotated[tuple[AgentPrunerName, ...], MinLen(1)]
    sparsities: Annotated[tuple[Annotated[float, Ge(0), Lt(1)], ...], MinLen(1)]
    seeds: Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1)]

    def __post_init__(self) -> None:
        if not any(self.sparsities):
            raise UserError("offline_rl.sweep.sparsities is [0], so nothing would be pruned; add one above 0")


def _with_each_algorithm(config_type: Callable[[str], type]) -> Callable[[type[T]], type[T]]:
    """Make a class a dataclass with a field for each algorithm, of the type `config_type(name)`."""

    def with_fields(kind: type[T]) -> type[T]:
        for name in algorithm_names():
            kind.__annotations__[name] = config_type(name)
            setattr(kind, name, field(default_factory=config_type(name)))
        return dataclass(frozen=True)(kind)

    return with_fields


@_with_each_algorithm(lambda _: TrainingConfig)
class TrainingConfigs:
    """How long the agents of each algorithm train."""


@_with_each_algorithm(lambda name: algorithm_class(name).config_type)
class AlgorithmConfigs:
    """The hyper-parameters of each algorithm."""


@dataclass(frozen=True)
class QuantizationConfig:
    """Cost of rounding values: agents of the sweep's highest sparsity are packed and scored again."""

    values: Annotated[tuple[ValuesName, ...], MinLen(1)]
    """Kinds of values with which agents are packed; `raw`, which keeps every bit, is the reference."""
    seeds: Annotated[int, Ge(1)]
    """Number of seeds whose agents are packed; they are the first ones of the sweep."""


@dataclass(frozen=True)
class OfflineRLConfig:
    """Single-shot pruning of offline-RL agents (Arnob et al. 2021)."""

    environments: Mapping[str, Environment]
    """The environments of the sweep, by name: those whose files in `conf/environment/` are selected."""
    sweep: SweepConfig
    data: DataConfig
    pruning: PruningConfig
    training: TrainingConfigs
    execution: Execution
    """How pruned agents train: `masked`, as dense networks with zeros; `sparse`, with only their kept
    weights, one agent at a time on a CPU; `auto`, as `sparse` wherever that is faster."""
    evaluation: EvaluationConfig
    statistics: BootstrapConfig
    quantization: QuantizationConfig
    algorithms: AlgorithmConfigs

    def __post_init__(self) -> None:
        if not self.environments:
            raise UserError("offline_rl.environments is empty; select one, e.g. environment=[Hopper]")
        for name in self.environments:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
                raise UserError(
                    f"offline_rl.environments: {name!r} can't name a folder; take letters, digits, - and _"
                )
