"""Singleshot makes neural networks small before they train, and measures what that costs: the library.

>>> import singleshot
>>> masks = singleshot.prune(model, loss, sparsity=0.95)    # any network; loss(model) is a scalar
>>> singleshot.apply(model, masks)                          # pruned weights are zero, and stay so
>>> singleshot.pack(model, "model.packed")                  # a file of only the kept weights

`singleshot.rl` trains and prunes offline-RL agents, `singleshot.style` stylises pictures, `singleshot.export`
runs networks elsewhere. Subpackages are imported when they are first used.
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("singleshot")
except PackageNotFoundError:  # a checkout that isn't installed
    __version__ = "0+checkout"

OFFERED = {
    "prune": "pruning.modules",
    "apply": "pruning.masked",
    "report": "pruning.modules",
    "compact": "sparse.compaction",
    "accelerate": "sparse.accelerated",
    "pack": "sparse.files",
    "unpack": "sparse.files",
    "UserError": "errors",
}
"""The modules of what this package offers itself."""
SUBPACKAGES = ("export", "pruning", "rl", "sparse", "style")


def __getattr__(name: str) -> Any:
    """Import what is asked for: PyTorch alone takes two seconds, which `import singleshot` does not."""
    if name in SUBPACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in OFFERED:
        return getattr(importlib.import_module(f"{__name__}.{OFFERED[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*SUBPACKAGES, *OFFERED, "__version__"]
