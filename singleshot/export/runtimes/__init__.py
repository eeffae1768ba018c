"""One adapter per module, with the interface `protocol.Runtime`.

An adapter's module names the runtimes that it runs, and what has to be known about them, in a literal
`RUNTIMES` (:class:`Declared`); its class is the module's `ADAPTER`. The literal is read without importing the
module, because many runtimes aren't installed, and those that are take seconds to import.
"""

import ast
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from singleshot.export.runtimes.protocol import Runtime
from singleshot.registry import modules_of


@dataclass(frozen=True)
class Declared:
    """What an adapter's module declares of one of its runtimes."""

    module: str
    """Full name of the module."""
    packages: tuple[str, ...]
    """Packages of the package index, any of which contains the runtime."""
    isolated: bool = False
    """Whether it runs in its own environment, see `singleshot.export.environment`."""
    threads_are_final: bool = False
    """Whether its number of threads can be set only once in a process."""
    slow_to_prepare: bool = False
    """Whether it takes long to compile a network. Such runtimes begin first, while others use other cores."""


def _declared() -> dict[str, Declared]:
    declared = {
        name: Declared(module, **own)
        for file, module in modules_of(__name__).items()
        for name, own in _literal(Path(__path__[0], f"{file}.py")).items()
    }
    return dict(sorted(declared.items()))


def _literal(path: Path) -> Mapping[str, Any]:
    """The `RUNTIMES` of a module; empty if it has none, because it isn't an adapter."""
    for statement in ast.parse(path.read_bytes()).body:
        match statement:
            case ast.Assign([ast.Name("RUNTIMES")], value):
                return ast.literal_eval(value)
    return {}


RUNTIMES = _declared()
"""All runtimes with an adapter, sorted by name. OpenVINO is nGraph's successor."""


def open_runtime(name: str, streams: int = 1) -> Runtime:
    """The adapter of the runtime `name`, imported only now.

    `streams` is the number of threads that call the runtime at once. Only OpenVINO has to know it.

    Raises:
        KeyError: `name` is not one of :data:`RUNTIMES`.
    """
    adapter: type[Runtime] = importlib.import_module(RUNTIMES[name].module).ADAPTER
    return adapter(name, streams)


def interpreter(name: str) -> Path | None:
    """The Python interpreter that `name` runs in; None if its environment isn't built."""
    if not RUNTIMES[name].isolated:
        return Path(sys.executable)
    from singleshot.export.environment import tensorflow_python

    return tensorflow_python()


def installed_version(name: str) -> str | None:
    """Version of the package that contains `name`; None if it isn't installed. Imports nothing of it.

    Raises:
        KeyError: `name` is not one of :data:`RUNTIMES`.
    """
    runtime, python = RUNTIMES[name], interpreter(name)
    if python is None:
        return None
    elsewhere = [str(path) for path in python.parents[1].glob("lib/python*/site-packages")]
    for package in runtime.packages:
        for found in distributions(name=package, path=elsewhere if runtime.isolated else sys.path):
            return found.version
    return None
