"""The name of a pruner, where the configuration has one."""

from typing import Annotated

import pydantic

from tasks.pruning.masks import find_pruner


def _known_pruner(name: str) -> str:
    find_pruner(name)
    return name


PrunerName = Annotated[str, pydantic.AfterValidator(_known_pruner)]
