"""Task: stylise photos, and show each beside the original."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from singleshot.errors import UserError
from singleshot.io.images import encode_jpeg, side_by_side
from singleshot.style.apply.stylize import FULL_STYLE, StylizeSettings, stylize
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.model_file import load_model
from tasks.job import Event, Job, Metrics, Progress, per_job


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
    """Stylise a job's photos (:class:`StylizeParams`).

    Inputs: `photos` (directory of a :class:`PhotoSet`) and `model`
    (:func:`singleshot.style.model_file.load_model`). The output gets `<photo>.jpg` for each photo, and
    `before_after.jpg`, which has a row for each photo, with the original on the left. Metrics:
    `seconds_per_image`, without reading and writing.

    Raises:
        UserError: an input is missing or damaged, the model is another style's, or there is no such photo.
    """
    params: StylizeParams = job.params
    network, card = load_model(job.inputs["model"])
    if card.style != params.style:
        raise UserError(f"{job.inputs['model']}: of style {card.style}, not {params.style}; train that one")
    network, photos = network.to(job.device), PhotoSet.open(job.inputs["photos"])
    pairs, seconds = [], 0.0
    for n, name in enumerate(params.photos, start=1):
        photo = photos.read(name, short_side=params.short_side)
        start = time.perf_counter()
        stylized = stylize(network, photo[None], params.settings)[0]
        seconds += time.perf_counter() - start
        (job.output / f"{name}.jpg").write_bytes(encode_jpeg(stylized))
        pairs.append(side_by_side(photo, stylized))
        yield Progress(n / len(params.photos))
    (job.output / "before_after.jpg").write_bytes(encode_jpeg(_stacked(pairs)))
    yield Metrics(card.steps, {"seconds_per_image": seconds / len(pairs)})


def _stacked(pairs: Sequence[Tensor]) -> Tensor:
    """Pictures (3, H, W) below one another, scaled to the width of the narrowest."""
    width = min(pair.shape[-1] for pair in pairs)
    rows = [
        functional.interpolate(
            pair[None],
            (round(pair.shape[-2] * width / pair.shape[-1]), width),
            mode="bilinear",
            antialias=True,
        )[0]
        for pair in pairs
    ]
    return torch.cat(rows, dim=-2)
