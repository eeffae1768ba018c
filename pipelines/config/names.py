"""Names in the configuration that registries of tasks know. They are checked when params.yaml is read."""

from collections.abc import Collection
from typing import Annotated

import pydantic

from tasks.deployment.runtimes import RUNTIMES
from tasks.pruning.pruners import PRUNERS


def _one_of(kind: str, known: Collection[str]) -> pydantic.AfterValidator:
    def check(name: str) -> str:
        if name not in known:
            raise ValueError(f"no such {kind}; known are {', '.join(known)}")
        return name

    return pydantic.AfterValidator(check)


PrunerName = Annotated[str, _one_of("pruner", PRUNERS)]
RuntimeName = Annotated[str, _one_of("runtime", RUNTIMES)]
