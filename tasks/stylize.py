"""Tasks: photos, a large picture, and the segments of a video in a style."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn import functional

from singleshot.errors import UserError
from singleshot.io.images import encode_jpeg, middle, read_rgb
from singleshot.job import Event, Job, Metrics, Progress, per_job
from singleshot.style.apply.stylize import FULL_STYLE, StylizeSettings, stylize
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.model_file import load_model
from singleshot.style.video.segments import SEGMENT, StylizeSegmentParams, torch_stylizer, write_segment

DETAIL_PX = 512
"""Side of the detail of a large picture, in pixels."""


@dataclass(frozen=True)
class StylizeParams:
    """Parameters that stylised photos depend on, besides the input files."""

    style: str
    """Name of the painting."""
    photos: tuple[str, ...]
    """Names of photos in the set of photos."""
    short_side: int | None = None
    """Short side in pixels that photos are scaled to first; None keeps their size."""
    settings: StylizeSettings = FULL_STYLE


@per_job
def stylize_photos(job: Job) -> Iterator[Event]:
    """Stylise a job's photos (:class:`StylizeParams`), and show each beside the painting and the original.

    Inputs: `photos` (directory of a :class:`PhotoSet`), `painting` and `model`
    (:func:`singleshot.style.model_file.load_model`). The output gets `<photo>.jpg` for each photo, and
    `before_after.jpg`, which has a row for each photo: the painting, the original and the result. Metrics:
    `seconds_per_image`, without reading and writing.

    Raises:
        UserError: an input is missing or damaged, the model is another style's, or there is no such photo.
    """
    params: StylizeParams = job.params
    network, card = load_model(job.inputs["model"])
    if card.style != params.style:
        raise UserError(f"{job.inputs['model']}: of style {card.style}, not {params.style}; train that one")
    network, photos = network.to(job.device), PhotoSet.open(job.inputs["photos"])
    painting = read_rgb(job.inputs["painting"])
    rows, seconds = [], 0.0
    for n, name in enumerate(params.photos, start=1):
        photo = photos.read(name, short_side=params.short_side)
        start = time.perf_counter()
        stylized = stylize(network, photo[None], params.settings)[0]
        seconds += time.perf_counter() - start
        (job.output / f"{name}.jpg").write_bytes(encode_jpeg(stylized))
        height, scale = photo.shape[-2], photo.shape[-2] / painting.shape[-2]
        beside = _scaled(painting, height, round(scale * painting.shape[-1]))
        rows.append(torch.cat([beside, photo, stylized], dim=-1))
        yield Progress(n / len(params.photos))
    (job.output / "before_after.jpg").write_bytes(encode_jpeg(_stacked(rows)))
    yield Metrics(card.steps, {"seconds_per_image": seconds / len(rows)})


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    width = min(row.shape[-1] for row in rows)
    return torch.cat([_scaled(row, round(row.shape[-2] * width / row.shape[-1]), width) for row in rows], -2)


def _scaled(picture: Tensor, height: int, width: int) -> Tensor:
    return functional.interpolate(picture[None], (height, width), mode="bilinear", antialias=True)[0]


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
    """Stylise a job's picture (:class:`LargeParams`), with strokes as large as its preview's.

    Inputs: `photos` (directory of a :class:`PhotoSet`) or `photo` (a picture), and `model`
    (:func:`singleshot.style.model_file.load_model`). The output gets `picture.jpg`, and `detail.jpg`: a
    square of the photo's middle, in full size, beside the same part of the picture.

    Raises:
        UserError: an input is missing or damaged, or there is no such photo.
    """
    params: LargeParams = job.params
    network, card = load_model(job.inputs["model"])

    def read(short_side: int | None) -> Tensor:
        if (file := job.inputs.get("photo")) is not None:
            return read_rgb(file, short_side=short_side)
        return PhotoSet.open(job.inputs["photos"]).read(params.config.photo, short_side=short_side)

    sides = read(None).shape[1:]
    photo = read(round(min(sides) * params.config.long_side_px / max(sides)))
    picture = stylize(network.to(job.device), photo[None], params.settings)[0]
    (job.output / "picture.jpg").write_bytes(encode_jpeg(picture))
    detail = torch.cat([middle(photo, DETAIL_PX), middle(picture, DETAIL_PX)], dim=-1)
    (job.output / "detail.jpg").write_bytes(encode_jpeg(detail))
    yield Metrics(card.steps, {"megapixels": picture[0].numel() / 1e6})


@per_job
def stylize_segment(job: Job) -> Iterator[Event]:
    """Stylise a segment of a video (:class:`~singleshot.style.video.segments.StylizeSegmentParams`).

    Inputs: `video`, and `model` (:func:`singleshot.style.model_file.load_model`). The output gets
    `segment.mp4` (:func:`singleshot.style.video.segments.write_segment`).

    Raises:
        UserError: the video isn't the one that the segment was planned for, or the model isn't a style's.
    """
    params: StylizeSegmentParams = job.params
    frames, start = params.segment.frames - params.lead, time.perf_counter()
    network, _ = load_model(job.inputs["model"])
    stylizer = torch_stylizer(network.to(job.device), params.settings)
    for done in write_segment(job.inputs["video"], job.output / SEGMENT, params, stylizer):
        yield Progress(done / frames)
    yield Metrics(frames, {"frames_per_second": frames / (time.perf_counter() - start)})
