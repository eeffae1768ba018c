"""Trained networks by the names that a user types, and what Tab completes. Imports nothing slow."""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from pipelines.catalog.paths import AGENTS, GRAPHS, LEARNED, STYLES
from singleshot.errors import UserError

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
    if model := found.get(style):
        return model
    near = get_close_matches(style, found, n=1)
    fix = f"did you mean {near[0]}; " if near else ""
    there_are = f"there are {', '.join(sorted(found))}"
    fix += there_are if found else "learn one by `python -m pipelines learn-style`, or run `make repro` first"
    raise UserError(f"no style {style!r} in {STYLES} or {LEARNED}; {fix}")


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


def complete_style(incomplete: str) -> list[str]:
    """Names of styles that begin like this."""
    return [name for name in sorted(styles()) if name.startswith(incomplete)]


def complete_graph(incomplete: str) -> list[str]:
    """Exported graphs whose path begins like this."""
    return [path for path in sorted(map(str, GRAPHS.rglob("*.onnx"))) if path.startswith(incomplete)]


def complete_agent(incomplete: str) -> list[str]:
    """Directories of trained agents whose paths begin like this."""
    return [path for path in sorted(str(AGENTS / name) for name in _agents()) if path.startswith(incomplete)]


def _agents() -> Iterator[str]:
    for path in AGENTS.rglob("agent.safetensors"):
        yield path.parent.relative_to(AGENTS).as_posix()
