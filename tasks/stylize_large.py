"""Task: one large picture in a style, with strokes as large as its preview's, and a detail of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from singleshot.io.images import encode_jpeg, middle, read_rgb, side_by_side
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.model_file import load_model
from tasks.job import Event, Job, Metrics, per_job

DETAIL_PX = 512
"""Side of the detail, in pixels."""


@dataclass(frozen=True)
class LargeConfig:
    """The large picture of the report's Figure 8."""

    photo: str
    """Name of a sample, which is enlarged, or path of a picture."""
    long_side_px: Annotated[int, Ge(64)]
    """Length to which the long side is scaled, in pixels."""


@dataclass(frozen=True)
class LargeParams:
    """Parameters that the picture depends on, besides the input files."""

    config: LargeConfig
    settings: StylizeSettings


@per_job
def stylize_large(job: Job) -> Iterator[Event]:
    """Stylise a job's picture (:class:`LargeParams`).

    Inputs: `photos` (directory of a :class:`PhotoSet`) or `photo` (a picture), and `model`
    (:func:`singleshot.style.model_file.load_model`). The output gets `picture.jpg`, and `detail.jpg`: a
    square of the photo's middle, in full size, beside the same of the picture.

    Raises:
        UserError: an input is missing or damaged, or there is no such photo.
    """
    params: LargeParams = job.params
    network, card = load_model(job.inputs["model"])
    photo = _scaled(job, params.config)
    picture = stylize(network.to(job.device), photo[None], params.settings)[0]
    (job.output / "picture.jpg").write_bytes(encode_jpeg(picture))
    detail = side_by_side(middle(photo, DETAIL_PX), middle(picture, DETAIL_PX))
    (job.output / "detail.jpg").write_bytes(encode_jpeg(detail))
    yield Metrics(card.steps, {"megapixels": picture[0].numel() / 1e6})


def _scaled(job: Job, config: LargeConfig) -> Tensor:
    """The photo (3, H, W) at the wanted size."""

    def read(short_side: int | None) -> Tensor:
        if (file := job.inputs.get("photo")) is not None:
            return read_rgb(file, short_side=short_side)
        return PhotoSet.open(job.inputs["photos"]).read(config.photo, short_side=short_side)

    sides = read(None).shape[1:]
    return read(round(min(sides) * config.long_side_px / max(sides)))
