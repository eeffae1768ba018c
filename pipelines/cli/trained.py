"""Trained styles by the names that a user types. Imports nothing slow."""

from pathlib import Path

from pipelines.catalog.paths import LEARNED, STYLES
from singleshot.errors import UserError, did_you_mean

MODEL = "model.safetensors"


def styles() -> dict[str, Path]:
    """Model files of the trained styles by name, e.g. `mine` or `ink`.

    A style of the user's own hides one of the pipeline that has its name.
    """
    return {
        path.parent.relative_to(root).as_posix(): path
        for root in (STYLES, LEARNED)
        for path in sorted(root.rglob(MODEL))
    }


def style_model(style: str) -> Path:
    """The model file of a style, which is given by its name, its file or that file's directory.

    Raises:
        UserError: there is no such style.
    """
    if Path(style).suffix == ".safetensors":
        return Path(style)
    if (Path(style) / MODEL).is_file():
        return Path(style) / MODEL
    found = styles()
    if style not in found:
        there_are = f"there are {', '.join(sorted(found))}"
        learn = "learn one by `python -m pipelines learn-style`, or run `make repro` first"
        fix = did_you_mean(style, found, there_are) if found else learn
        raise UserError(f"no style {style!r} in {STYLES} or {LEARNED}; {fix}")
    return found[style]


def share_of(style: str) -> tuple[str, float]:
    """Name and share of `name:share`.

    Raises:
        UserError: the share of a style is not a number above 0.
    """
    name, colon, text = style.rpartition(":")
    if not colon:
        return style, 1.0
    try:
        share = float(text)
    except ValueError:
        if name not in styles():
            return style, 1.0  # a path with a colon
        share = 0.0
    if not 0 < share < float("inf"):
        raise UserError(f"{style}: the share {text!r} is no number above 0")
    return name, share
