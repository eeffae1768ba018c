"""Task: one painting whose style is to be learned, drawn or fetched, as `painting.png` with a card."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from singleshot.io.download import is_remote, local_or_cached, local_path
from singleshot.io.images import encode_png, read_rgb
from singleshot.style.datasets.paintings import draw
from tasks.job import Job, per_job

DRAWN = "drawn"


@dataclass(frozen=True)
class PaintingParams:
    """Parameters that one painting depends on, besides its input file."""

    name: str
    """Name of the style."""
    source: str
    """`drawn` for one of :data:`PaintingName`, or the path or URL of a picture file."""
    sha256: str | None
    """Expected SHA-256 of the file; if None, the actual one is only recorded."""
    long_side_px: int
    """Long side of the painting, in pixels. A file's picture is scaled down to it if it is larger, but not
    up."""

    def inputs(self) -> dict[str, Path]:
        """The file that :func:`fetch_painting` reads, if the source is a local one."""
        if self.source == DRAWN or is_remote(self.source):
            return {}
        return {"painting": local_path(self.source)}


@dataclass(frozen=True)
class PaintingCard:
    """Description of a painting."""

    name: str
    origin: str
    """`drawn`, the file's name, or its URL."""
    origin_sha256: str | None
    """SHA-256 of the file that the painting was made from."""
    sha256: str
    """SHA-256 of painting.png."""
    width_px: int
    height_px: int


@per_job
def fetch_painting(job: Job) -> None:
    """Draw or fetch a job's painting (:class:`PaintingParams`).

    Inputs: `painting`, as :meth:`PaintingParams.inputs` says. The output gets `painting.png` and `card.json`
    (:class:`PaintingCard`).

    Raises:
        UserError: there is no drawn painting of that name; the file is missing, unreachable, damaged or no
            picture, or its SHA-256 isn't the expected one.
    """
    params: PaintingParams = job.params
    if params.source == DRAWN:
        picture, origin, sha256 = draw(params.name, params.long_side_px), DRAWN, None
    else:
        setting = f"style.paintings.sources.{params.name}.source"
        file, origin, sha256 = local_or_cached(
            job.inputs.get("painting"), params.source, params.sha256, setting
        )
        picture = _read(file, params.long_side_px)
    content = encode_png(picture)
    (job.output / "painting.png").write_bytes(content)
    card = PaintingCard(
        name=params.name,
        origin=origin,
        origin_sha256=sha256,
        sha256=hashlib.sha256(content).hexdigest(),
        width_px=picture.shape[2],
        height_px=picture.shape[1],
    )
    (job.output / "card.json").write_text(
        json.dumps(asdict(card), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _read(file: Path, long_side: int) -> Tensor:
    picture = read_rgb(file)
    _, height, width = picture.shape
    if max(height, width) <= long_side:
        return picture
    return read_rgb(file, short_side=long_side * min(height, width) // max(height, width))
