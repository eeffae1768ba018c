"""Names in the configuration that must be in a registry. They are checked when params.yaml is read."""

from typing import Annotated

import pydantic

from singleshot.errors import UserError
from singleshot.export.runtimes import RUNTIMES
from singleshot.pruning import pruners
from singleshot.pruning.dynamic import METHODS
from singleshot.rl import algorithms
from singleshot.rl.agents import SMALL

TRAINED = (SMALL, *METHODS)
"""Agents that get their few weights otherwise than from a pruner before training."""


def _pruner(name: str) -> str:
    pruners.module_of(name)
    return name


def _agent_pruner(name: str) -> str:
    if name not in TRAINED:
        try:
            pruners.module_of(name)
        except UserError as error:
            raise UserError(f"{error}, and {', '.join(TRAINED)}") from None
    return name


def _runtime(name: str) -> str:
    if name not in RUNTIMES:
        raise ValueError(f"no such runtime; known are {', '.join(RUNTIMES)}")
    return name


def _algorithm(name: str) -> str:
    algorithms.module_of(name)
    return name


AlgorithmName = Annotated[str, pydantic.AfterValidator(_algorithm)]
AgentPrunerName = Annotated[str, pydantic.AfterValidator(_agent_pruner)]
PrunerName = Annotated[str, pydantic.AfterValidator(_pruner)]
RuntimeName = Annotated[str, pydantic.AfterValidator(_runtime)]
