"""The algorithms: each module is one, named as the module is, and its class is the module's `ALGORITHM`.

They are imported by name, so that a new one is not among the sources of what others computed.
"""

import functools
import importlib
import pkgutil

from tasks.errors import UserError
from tasks.offline_rl.algorithm import Algorithm


@functools.cache
def algorithm_names() -> tuple[str, ...]:
    """All there are, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def module_of(name: str) -> str:
    """The module of the algorithm `name`.

    Raises:
        UserError: there is no such algorithm.
    """
    if name not in algorithm_names():
        raise UserError(f"no algorithm {name!r}; known are {', '.join(algorithm_names())}")
    return f"{__name__}.{name}"


def algorithm_class(name: str) -> type[Algorithm]:
    """The algorithm `name`.

    Raises:
        UserError: there is no such algorithm.
    """
    found: type[Algorithm] = importlib.import_module(module_of(name)).ALGORITHM
    return found
