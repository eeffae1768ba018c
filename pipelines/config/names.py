"""Names in the configuration that must be in a registry. They are checked when params.yaml is read."""

from typing import Annotated

import pydantic

from singleshot.export.runtimes import RUNTIMES
from singleshot.pruning.masks import find_pruner
from singleshot.rl.algorithms import module_of


def _pruner(name: str) -> str:
    find_pruner(name)
    return name


def _runtime(name: str) -> str:
    if name not in RUNTIMES:
        raise ValueError(f"no such runtime; known are {', '.join(RUNTIMES)}")
    return name


def _algorithm(name: str) -> str:
    module_of(name)
    return name


AlgorithmName = Annotated[str, pydantic.AfterValidator(_algorithm)]
PrunerName = Annotated[str, pydantic.AfterValidator(_pruner)]
RuntimeName = Annotated[str, pydantic.AfterValidator(_runtime)]
