"""The part of the configuration that is about offline RL (Arnob et al. 2021)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Lt, MinLen

from pipelines.config.names import AgentPrunerName, AlgorithmName
from singleshot.errors import UserError
from singleshot.pruning.masks import PruningConfig
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.rl.algorithms.iql import IQLConfig
from singleshot.rl.algorithms.td3bc import TD3BCConfig
from singleshot.rl.data.transitions import DataConfig
from singleshot.rl.environments import Environment
from singleshot.rl.evaluation.play import EvaluationConfig
from singleshot.rl.execution import Execution
from singleshot.sparse.values import ValuesName
from tasks.reporting.statistics import BootstrapConfig
from tasks.train_agents import TrainingConfig


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


@dataclass(frozen=True)
class TrainingConfigs:
    """How long the agents of each algorithm train. Each algorithm has a field here and in `algorithms`."""

    bcq: TrainingConfig = field(default_factory=TrainingConfig)
    bc: TrainingConfig = field(default_factory=TrainingConfig)
    td3bc: TrainingConfig = field(default_factory=TrainingConfig)
    iql: TrainingConfig = field(default_factory=TrainingConfig)


@dataclass(frozen=True)
class AlgorithmConfigs:
    """The hyper-parameters of each algorithm."""

    bcq: BCQConfig = field(default_factory=BCQConfig)
    bc: BCConfig = field(default_factory=BCConfig)
    td3bc: TD3BCConfig = field(default_factory=TD3BCConfig)
    iql: IQLConfig = field(default_factory=IQLConfig)


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
