"""Paintings to learn styles from: those of the user, and three of our own.

Our own differ in the elements of their styles: `swirls` has thick brush strokes that follow a flow, `waves`
has flat colours with outlines and stripes, and `mosaic` has small tiles with joints. They were drawn with
NumPy and OpenCV, by this module as it was at b0d4dff, and are kept as AVIF of quality 90. Their long sides
have 768 px.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from singleshot.errors import UserError
from singleshot.io.addresses import check_address
from singleshot.io.download import local_or_cached
from singleshot.io.images import encode_png, read_rgb
from singleshot.job import Job, per_job
from singleshot.style.datasets.cards import local_input, write_card

DRAWN = "drawn"
DRAWN_FILES = {file.stem: file for file in sorted(Path(__file__).with_name(DRAWN).glob("*.avif"))}
"""The paintings that come with this project, by their names."""


def drawn_painting(name: str) -> Path:
    """The file of the painting called `name`. Raises UserError if there is no painting of that name."""
    if name not in DRAWN_FILES:
        raise UserError(
            f"no painting {name!r} comes with this project, only {', '.join(DRAWN_FILES)}; "
            "give its path or URL"
        )
    return DRAWN_FILES[name]


@dataclass(frozen=True)
class PaintingConfig:
    """Where one painting comes from."""

    source: str
    """`drawn` for a painting that comes with this project, else the path or URL of a picture. Secrets come
    from ~/.netrc, or as $NAME from the environment."""
    sha256: str | None = None
    """SHA-256 that the file must have; with null, the file's SHA-256 is only recorded."""

    def __post_init__(self) -> None:
        check_address(self.source)


@dataclass(frozen=True)
class PaintingParams:
    """Parameters that one painting depends on, besides its input file."""

    name: str
    """Name of the style."""
    config: PaintingConfig
    long_side_px: int
    """Long side of the painting, in pixels. A file's picture is scaled down to it if it is larger, but not
    up."""

    def inputs(self) -> dict[str, Path]:
        """The file that :func:`fetch_painting` reads, unless it is at a URL.

        Raises:
            UserError: no painting of that name comes with this project.
        """
        if self.config.source == DRAWN:
            return {"painting": drawn_painting(self.name)}
        return local_input("painting", self.config.source)


@per_job
def fetch_painting(job: Job) -> None:
    """Copy or fetch a job's painting (:class:`PaintingParams`).

    Inputs: `painting`, as :meth:`PaintingParams.inputs` says. The output gets `painting.png` and `card.json`,
    which has its size and SHA-256, and the name or URL and the SHA-256 of the file that it was made from.

    Raises:
        UserError: the file is missing, unreachable, damaged or no picture, or its SHA-256 isn't the expected
            one.
    """
    params: PaintingParams = job.params
    given, source = job.inputs.get("painting"), params.config.source
    file, origin, sha256 = local_or_cached(given, source, params.config.sha256, "the path of the painting")
    picture = read_rgb(file)
    short, long = sorted(picture.shape[1:])
    if long > params.long_side_px:
        picture = read_rgb(file, short_side=params.long_side_px * short // long)
    content = encode_png(picture)
    (job.output / "painting.png").write_bytes(content)
    card = {
        "name": params.name,
        "origin": DRAWN if source == DRAWN else origin,
        "origin_sha256": sha256,
        "sha256": hashlib.sha256(content).hexdigest(),
        "width_px": picture.shape[2],
        "height_px": picture.shape[1],
    }
    write_card(job, card)
