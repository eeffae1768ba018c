"""The algorithms, one per module: its name is the module's, and its class is the module's `ALGORITHM`.

Modules are imported by name, so that a new algorithm is not among the source files on which the results of
other algorithms depend.
"""

import functools
import importlib
import pkgutil

from singleshot.errors import UserError
from singleshot.rl.algorithm import Algorithm


@functools.cache
def algorithm_names() -> tuple[str, ...]:
    """Names of all algorithms, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def module_of(name: str) -> str:
    """Full name of the module of the algorithm `name`.

    Raises:
        UserError: there is no such algorithm.
    """
    if name not in algorithm_names():
        raise UserError(f"no algorithm {name!r}; known are {', '.join(algorithm_names())}")
    return f"{__name__}.{name}"


def algorithm_class(name: str) -> type[Algorithm]:
    """The class of the algorithm `name`.

    Raises:
        UserError: there is no such algorithm.
    """
    found: type[Algorithm] = importlib.import_module(module_of(name)).ALGORITHM
    return found
