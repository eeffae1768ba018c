"""Style transfer for pictures and videos (Shen and Wang), by Gatys et al.'s and Johnson et al.'s methods.

>>> from singleshot.style import Style
>>> Style.load("styles/mine/model.safetensors")("photo.jpg", strength=0.8).save("out.jpg")
"""

import importlib
from typing import TYPE_CHECKING, Any

from singleshot.errors import explained

if TYPE_CHECKING:
    from singleshot.style.style import Style as Style


def __getattr__(name: str) -> Any:
    """Import what is asked for: PyTorch alone takes two seconds, which `import singleshot.style` does not."""
    if name == "Style":
        with explained("styles need more packages", "pip install '.[style]' in the checkout", ImportError):
            return importlib.import_module(f"{__name__}.style").Style
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), "Style"]
