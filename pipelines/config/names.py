"""Names in the configuration that must be in a registry. They are checked when params.yaml is read."""

from collections.abc import Callable
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


def _checked(find: Callable[[str], object]) -> pydantic.AfterValidator:
    """Accept the names for which `find` does not raise a ValueError."""

    def check(name: str) -> str:
        find(name)
        return name

    return pydantic.AfterValidator(check)


def _agent_pruner(name: str) -> None:
    if name not in TRAINED:
        try:
            pruners.module_of(name)
        except UserError as error:
            raise UserError(f"{error}, and {', '.join(TRAINED)}") from None


def _runtime(name: str) -> None:
    if name not in RUNTIMES:
        raise ValueError(f"no such runtime; known are {', '.join(RUNTIMES)}")


AlgorithmName = Annotated[str, _checked(algorithms.module_of)]
AgentPrunerName = Annotated[str, _checked(_agent_pruner)]
RuntimeName = Annotated[str, _checked(_runtime)]
