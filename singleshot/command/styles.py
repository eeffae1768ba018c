"""The styles that a user can name: shipped ones, the pipeline's, and the user's. It imports no PyTorch."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from singleshot.errors import UserError, did_you_mean
from singleshot.io.folders import LEARNED, MODEL, TRAINED
from singleshot.style import shipped

MODELS = (".safetensors", ".packed")
"""Suffixes of styles' model files."""
Shares = Mapping[str, float]
"""Styles, each a name, a model file or that file's directory, with their shares in a blend."""


def style_files() -> dict[str, Path]:
    """The model files by the styles' names. If names are equal, the user's is first, then the pipeline's."""
    found = dict(shipped.FILES)
    for root in (TRAINED, LEARNED):
        found |= {path.parent.relative_to(root).as_posix(): path for path in sorted(root.rglob(MODEL))}
    return found


def list_styles() -> None:
    """Print a line for each style."""
    files = style_files()
    for name, file in sorted(files.items()):
        hides = ", which hides the one of the package" if name in shipped.FILES else ""
        where = "comes with the package" if shipped.FILES.get(name) == file else f"{file}{hides}"
        print(f"{name:{max(map(len, files))}}  {where}")


def draw_styles(output: Path) -> None:
    """Write a sheet of scikit-image's cat and its pictures in each style."""
    import skimage.data
    import torch

    from singleshot.io.images import contact_sheet, encode_jpeg
    from singleshot.io.whole_file import whole_file
    from singleshot.style import Style

    photo = skimage.data.chelsea()  # type: ignore[no-untyped-call]
    pictures = {"photo": photo} | {
        name: Style.load(file)(photo) for name, file in sorted(style_files().items())
    }
    tensors = [torch.from_numpy(pixels).permute(2, 0, 1) / 255 for pixels in pictures.values()]
    with whole_file(output) as whole:
        whole.write_bytes(encode_jpeg(contact_sheet(tensors, list(pictures))))
    print(f"{output}: a photo in each")


def read_shares(styles: Iterable[str]) -> Shares:
    """Styles with the shares after their colons, e.g. `scream:0.7`. A share is 1 by default.

    Raises:
        UserError: there is no such style, or a share isn't a number.
    """
    shares = dict(map(_share_of, styles))
    for style in shares:
        style_model(style)
    return shares


def style_model(style: str) -> Path:
    """The model file of a style. Raises UserError if there is no such style."""
    path = Path(style)
    if path.suffix in MODELS or (path / MODEL).is_file():
        return path
    if style not in (files := style_files()):
        fix = did_you_mean(style.lower(), files, f"there are {', '.join(sorted(files))}")
        raise UserError(f"no style {style!r}; {fix} (`singleshot learn-style` makes one)")
    return files[style]


def short_name(style: str) -> str:
    """A style's name, for names of files."""
    path = Path(style).absolute()
    if path.name == MODEL:
        return path.parent.name
    return path.stem if path.suffix in MODELS else path.name


def _share_of(style: str) -> tuple[str, float]:
    name, _, text = style.partition(":")
    try:
        return name, float(text or 1)
    except ValueError as error:
        raise UserError(f"{style}: the share {text!r} isn't a number; give one above 0") from error
