"""Singleshot: single-shot pruning, offline RL, style transfer and export, as a library.

>>> import singleshot
>>> masks = singleshot.prune(model, loss, sparsity=0.95)    # any network; loss(model) is a scalar
>>> singleshot.apply(model, masks)                          # pruned weights are zero, and stay so

`singleshot.rl` trains and prunes offline-RL agents, `singleshot.style` stylises pictures, `singleshot.export`
runs networks elsewhere. Subpackages are imported when they are first used.
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from singleshot.pruning.modules import apply as apply
    from singleshot.pruning.modules import prune as prune
    from singleshot.pruning.modules import report as report

try:
    __version__ = version("singleshot")
except PackageNotFoundError:  # a checkout that isn't installed
    __version__ = "0+checkout"

SUBPACKAGES = ("export", "pruning", "rl", "sparse", "style")


def __getattr__(name: str) -> Any:
    """Import what is asked for: PyTorch alone takes two seconds, which `import singleshot` does not."""
    if name in SUBPACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in ("prune", "apply", "report"):
        return getattr(importlib.import_module(f"{__name__}.pruning.modules"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*SUBPACKAGES, "__version__", "apply", "prune", "report"]
