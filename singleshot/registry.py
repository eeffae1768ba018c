"""Registries of things that each have a module, and are found by its name."""

import functools
import importlib.util
import pkgutil


@functools.cache
def modules_of(package: str) -> dict[str, str]:
    """Full names of the modules of `package`, by their own names, sorted. None of them is imported.

    A module that is imported by its name is not among the source files on which other results depend: a new
    algorithm or pruner leaves the agents of all others as they are.
    """
    spec = importlib.util.find_spec(package)
    assert spec is not None
    names = (module.name for module in pkgutil.iter_modules(spec.submodule_search_locations))
    return {name: f"{package}.{name}" for name in sorted(names)}
