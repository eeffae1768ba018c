"""The name of a pruner, where the configuration has one."""

from typing import Annotated

import pydantic

from tasks.pruning.pruners import PRUNERS


def _known_pruner(name: str) -> str:
    if name not in PRUNERS:
        raise ValueError(f"no such pruner; known are {', '.join(PRUNERS)}")
    return name


PrunerName = Annotated[str, pydantic.AfterValidator(_known_pruner)]
