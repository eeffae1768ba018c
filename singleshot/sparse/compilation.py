"""Numba's compiler for the kernels, whose machine code is kept for other processes.

Compiling the kernels takes about three seconds, which each process would otherwise spend again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from llvmlite import binding
from numba.core import config

from singleshot.errors import UserError
from singleshot.io.hashing import sha256_of_value
from singleshot.io.user_cache import user_cache

SOURCES = ("kernels.py", "vectors.py")


def digest() -> str:
    """A hash of the sources' version and the kind of processor, each of which has a directory of its own.

    Numba tells processors apart, but doesn't look at sources that a kernel's module imports.
    """
    name, features = config.CPU_NAME, config.CPU_FEATURES  # type: ignore[attr-defined]
    processor = name or binding.get_host_cpu_name(), features or binding.get_host_cpu_features().flatten()
    sources = [Path(__file__).with_name(name).read_text("utf-8") for name in SOURCES]
    return sha256_of_value([numba.__version__, llvmlite.__version__, *processor, *sources])


def _can_keep() -> bool:
    """Whether the user's cache can be written; it can't if, for example, the user's home is read-only."""
    try:
        kept = user_cache("kernels", digest()[:16])
    except UserError:
        return False
    # The setting is for all functions of the process, but only the kernels ask for a cache.
    config.CACHE_DIR = str(kept)  # type: ignore[attr-defined]
    return True


CAN_KEEP = _can_keep()


def compiled(kernel: Callable[..., None]) -> Any:
    """Compile `kernel` when it is first called, or take the machine code that another process has kept.

    A kernel has a name of its own, and is always called with the same types: processes that keep code under
    one name at once, but for different types or processors, would confuse their files.
    """
    return numba.njit(error_model="numpy", cache=CAN_KEEP)(kernel)
