"""Pictures of any size and number through a style's network; and the task that does it to photos."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tasks.data.images import encode_jpeg, side_by_side
from tasks.errors import UserError
from tasks.job import Event, Job, Metrics, Progress
from tasks.style.apply.tiling import Tile, free_memory, is_out_of_memory, stylized_bands, to_float
from tasks.style.datasets.photos import PhotoSet
from tasks.style.model_file import load_model
from tasks.style.precision import Precision, autocast, channels_last, resolve
from tasks.style.transformer_net import MIN_SIDE_PX, TransformerNet

WHOLE_BYTES = 30
"""Of memory per pixel, times `width`, that whole pictures take at their peak (benchmarks/style_tiles)."""
TILE_BYTES = 90
"""The same per pixel of a tile: more, for the rows around it and for memory that the allocator keeps."""
CPU_WHOLE_PX = 2**19
"""From 0.5 megapixels on, tiles take no more time on a CPU than the whole; they stay nearer its caches."""
CPU_TILE_PX = 2**16
"""Larger tiles are slower, for the same reason."""
LUMA = (0.299, 0.587, 0.114)
"""Of R, G and B: the Y of YIQ (ITU-R BT.601)."""


@dataclass(frozen=True)
class StylizeParams:
    """What stylised photos depend on, besides the input files."""

    style: str
    """The painting's name."""
    photos: tuple[str, ...]
    """Names in the set of photos."""
    short_side: int | None = None
    """Pixels that photos are scaled to first; None keeps their size."""
    strength: float = 1.0
    preserve_color: bool = False
    precision: Precision = "auto"


def stylize_photos(jobs: Sequence[Job]) -> Iterator[Event]:
    """Put photos into a style (:class:`StylizeParams`).

    Inputs: `photos` (directory of a :class:`PhotoSet`) and `model`
    (:func:`tasks.style.model_file.load_model`). The output gets `<photo>.jpg` for each, and
    `before_after.jpg`: a row for each, the photo on the left. Metrics: `seconds_per_image`, without reading
    and writing.

    Raises:
        UserError: an input is missing or damaged, the model is another style's, or there is no such photo.
    """
    for i, job in enumerate(jobs):
        params: StylizeParams = job.params
        network, card = load_model(job.inputs["model"])
        if card.style != params.style:
            raise UserError(
                f"{job.inputs['model']}: of style {card.style}, not {params.style}; train that one"
            )
        network, photos = network.to(job.device), PhotoSet.open(job.inputs["photos"])
        pairs, seconds = [], 0.0
        for n, name in enumerate(params.photos, start=1):
            photo = photos.read(name, short_side=params.short_side)
            start = time.perf_counter()
            stylized = stylize(
                network,
                photo[None],
                strength=params.strength,
                preserve_color=params.preserve_color,
                precision=params.precision,
            )[0]
            seconds += time.perf_counter() - start
            (job.output / f"{name}.jpg").write_bytes(encode_jpeg(stylized))
            pairs.append(side_by_side(photo, stylized))
            yield Progress((i + n / len(params.photos)) / len(jobs))
        (job.output / "before_after.jpg").write_bytes(encode_jpeg(_stacked(pairs)))
        yield Metrics(i, card.steps, {"seconds_per_image": seconds / len(pairs)})


def stylize(
    network: TransformerNet,
    pictures: Tensor,
    *,
    strength: float = 1.0,
    preserve_color: bool = False,
    precision: Precision = "auto",
) -> Tensor:
    """Pictures (N, 3, H, W) in the network's style: same shape, type and device, computed on the network's.

    Pictures are float in [0, 1], or uint8, which takes a quarter of the memory. They run at once, a few at a
    time, or each in tiles (:mod:`tasks.style.apply.tiling`), as memory allows.

    `strength` from 0 to 1 blends from the picture to its stylised one. `preserve_color` gives the stylised
    picture the colours of the original, by luminance-only transfer in YIQ (Gatys et al. 2016, "Preserving
    color in neural artistic style transfer").

    Raises:
        UserError: a strength outside [0, 1], a side below MIN_SIDE_PX, or memory suffices for no tile.
    """
    if not 0 <= strength <= 1:
        raise UserError(f"strength is {strength}; it has to be from 0 to 1")
    height, width = pictures.shape[-2:]
    if min(height, width) < MIN_SIDE_PX:
        raise UserError(
            f"a picture of {width}x{height} px is too small; sides have to be {MIN_SIDE_PX} or more"
        )
    device = next(network.parameters()).device
    channels_last(network)
    dtype = resolve(precision, str(device))
    results = torch.empty_like(pictures)
    with torch.inference_mode(), autocast(str(device), dtype):
        for first, top, stylized in _stylized(network, pictures):
            n, _, h, _ = stylized.shape
            photo = pictures[first : first + n, :, top : top + h]
            finished = _finished(to_float(photo), stylized.float().to(photo.device), strength, preserve_color)
            results[first : first + n, :, top : top + h] = _like(finished, photo)
    return results


def _stylized(network: TransformerNet, pictures: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Parts of the result as they come, each with its first picture's number and its first row."""
    height, width = pictures.shape[-2:]
    device = next(network.parameters()).device
    memory = free_memory(device) // 2 // network.width
    whole_px, tile_px = memory // WHOLE_BYTES, memory // TILE_BYTES
    if device.type == "cpu":
        whole_px, tile_px = min(whole_px, CPU_WHOLE_PX), min(tile_px, CPU_TILE_PX)
    at_once, tile = whole_px // (height * width), Tile(max(tile_px // width, 1))
    for first in range(0, len(pictures), max(at_once, 1)):
        batch = pictures[first : first + max(at_once, 1)]
        whole = _whole(network, batch) if at_once else None
        if whole is not None:
            yield first, 0, whole
            continue
        for i in range(len(batch)):
            for top, band in stylized_bands(network, batch[i : i + 1], tile):
                yield first + i, top, band


def _whole(network: TransformerNet, batch: Tensor) -> Tensor | None:
    """None if memory doesn't suffice after all."""
    device = next(network.parameters()).device
    try:
        return network(to_float(batch.to(device)).contiguous(memory_format=torch.channels_last))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None


def _finished(photo: Tensor, stylized: Tensor, strength: float, preserve_color: bool) -> Tensor:
    stylized = stylized.clamp(0, 1)
    if preserve_color:
        # Y has the coefficient 1 in each of R, G and B: to exchange it alone is to add its difference to all.
        luma = torch.tensor(LUMA, device=photo.device).view(1, 3, 1, 1)
        stylized = photo + ((stylized - photo) * luma).sum(dim=1, keepdim=True)
    return torch.lerp(photo, stylized, strength).clamp(0, 1)


def _like(picture: Tensor, original: Tensor) -> Tensor:
    return picture.mul(255).round().byte() if original.dtype == torch.uint8 else picture.to(original.dtype)


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
