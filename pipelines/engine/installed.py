"""The installed packages."""

import functools
import hashlib
import importlib.metadata
import sysconfig
from collections.abc import Mapping
from pathlib import Path


@functools.cache
def distributions() -> Mapping[str, list[str]]:
    """The names of the installed packages that provide each top module; found in half a second."""
    return importlib.metadata.packages_distributions()


def digest() -> str:
    """A digest of the installed packages' names and versions."""
    names = (path.name for path in Path(sysconfig.get_path("purelib")).glob("*.dist-info"))
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()
