"""The part of the configuration that is about offline RL (Arnob et al. 2021)."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from annotated_types import Ge, Lt, MinLen
from pydantic_core import CoreSchema, core_schema

from singleshot.errors import UserError
from singleshot.pruning import masks
from singleshot.pruning.dynamic import METHODS
from singleshot.pruning.masks import PruningConfig
from singleshot.pruning.variant import DENSE, SMALL
from singleshot.rl.agents import AgentSpec
from singleshot.rl.algorithm import ALGORITHMS, AlgorithmConfig, algorithm_class, module_of
from singleshot.rl.data.transitions import DataConfig
from singleshot.rl.environments import Environment
from singleshot.rl.evaluation.play import EvaluationConfig
from singleshot.rl.networks import Execution
from singleshot.sparse.packed import ValuesName
from tasks.reporting.statistics import BootstrapConfig
from tasks.train_agents import TrainingConfig

TRAINED = (SMALL, *METHODS)
"""Agents that get their few weights in a different way than from a pruner before training."""


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
    """The grid of agents in each environment: all combinations, with one agent, `dense`, for sparsity 0."""

    algorithms: Annotated[tuple[AlgorithmName, ...], MinLen(1)]
    pruners: Annotated[tuple[AgentPrunerName, ...], MinLen(1)]
    sparsities: Annotated[tuple[Annotated[float, Ge(0), Lt(1)], ...], MinLen(1)]
    seeds: Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1)]

    def __post_init__(self) -> None:
        if not any(self.sparsities):
            raise UserError("offline_rl.sweep.sparsities is [0], so nothing would be pruned; add one above 0")


@dataclass(frozen=True)
class OfEachAlgorithm:
    """For pydantic: a mapping with an entry for each algorithm, of the type `config_type(name)`.

    An entry that is not given has its type's defaults, so that a new algorithm needs no file of `conf/`.
    """

    config_type: Callable[[str], type]

    @property
    def types(self) -> dict[str, type]:
        """The type of each entry."""
        return {name: self.config_type(name) for name in ALGORITHMS}

    def __get_pydantic_core_schema__(self, _: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        entries = {
            name: core_schema.typed_dict_field(
                core_schema.with_default_schema(handler.generate_schema(kind), default_factory=kind)
            )
            for name, kind in self.types.items()
        }
        return core_schema.typed_dict_schema(entries)


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
    training: Annotated[Mapping[str, TrainingConfig], OfEachAlgorithm(lambda _: TrainingConfig)]
    """How long the agents of each algorithm train."""
    execution: Execution
    """How pruned agents train: `masked`, as dense networks with zeros; `sparse`, with only their kept
    weights, one agent at a time on a CPU; `auto`, as `sparse` wherever that is faster."""
    evaluation: EvaluationConfig
    statistics: BootstrapConfig
    quantization: QuantizationConfig
    algorithms: Annotated[
        Mapping[str, AlgorithmConfig], OfEachAlgorithm(lambda name: algorithm_class(name).config_type)
    ]
    """The hyper-parameters of each algorithm."""

    def __post_init__(self) -> None:
        if not self.environments:
            raise UserError("offline_rl.environments is empty; select one, e.g. environment=[Hopper]")
        for name in self.environments:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
                raise UserError(
                    f"offline_rl.environments: {name!r} can't name a folder; take letters, digits, - and _"
                )

    def agents(self) -> Iterator[AgentSpec]:
        """Every agent of the sweep. Sparsity 0 gives one dense agent, whatever the number of pruners."""
        sweep = self.sweep
        sparsities = sorted(set(sweep.sparsities) - {0})
        for environment in self.environments:
            for algorithm in dict.fromkeys(sweep.algorithms):
                for seed in dict.fromkeys(sweep.seeds):
                    if 0 in sweep.sparsities:
                        yield AgentSpec(environment, algorithm, DENSE, 0.0, seed)
                    for pruner in dict.fromkeys(sweep.pruners):
                        for sparsity in sparsities:
                            yield AgentSpec(environment, algorithm, pruner, sparsity, seed)

    def environment_of(self, agent: AgentSpec) -> Environment:
        """Where an agent acts."""
        return self.environments[agent.environment]

    def algorithm_of(self, agent: AgentSpec) -> AlgorithmConfig:
        """The hyper-parameters of an agent's algorithm."""
        return self.algorithms[agent.algorithm]

    def training_of(self, agent: AgentSpec) -> TrainingConfig:
        """How long an agent trains."""
        return self.training[agent.algorithm]

    def draw_of(self, agent: AgentSpec) -> int | None:
        """The draw of an expert's data that an agent is trained on; None if the source has no draws."""
        if self.data.source != "expert":
            return None
        return agent.seed if self.data.seed is None else self.data.seed

    def data_of(self, agent: AgentSpec) -> str:
        """The name of the dataset that an agent is trained on, which is its directory below all datasets."""
        draw = self.draw_of(agent)
        return agent.environment if draw is None else f"{agent.environment}/draw-{draw}"
