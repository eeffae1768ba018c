"""Stylising of pictures of any size and number with a style's network."""

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from singleshot.errors import UserError, is_out_of_memory
from singleshot.io.images import luma
from singleshot.style.apply.strokes import brought_up, scaled_down, small_size
from singleshot.style.apply.tiling import Tile, free_memory, stylized_bands, to_float
from singleshot.style.precision import Precision, autocast, channels_last, resolve
from singleshot.style.transformer_net import MIN_SIDE_PX, TransformerNet

WHOLE_BYTES = 30
"""Peak memory of whole pictures, in bytes per pixel and per channel of `width`
(benchmarks/results/style_tiles.md)."""
TILE_BYTES = 90
"""The same for tiles. It is more because of the rows around a tile and the memory that the allocator
keeps."""
CPU_WHOLE_PX = 2**19
"""Largest number of pixels that run as a whole on a CPU. From there on, 0.5 megapixels, tiles take no more
time, since they stay nearer the CPU's caches."""
CPU_TILE_PX = 2**16
"""Largest number of pixels of a tile on a CPU. Larger tiles are slower, for the same reason."""


@dataclass(frozen=True)
class StylizeSettings:
    """Settings with which pictures are stylised."""

    strength: float = 1.0
    """How much of the style to apply: from 0, the picture itself, to 1, the stylised picture."""
    preserve_color: bool = False
    """Whether to give the stylised picture the colours of the original, by luminance-only transfer in YIQ
    (Gatys et al. 2016, "Preserving color in neural artistic style transfer")."""
    precision: Precision = "auto"
    stroke: float | None = None
    """Size of strokes relative to the picture: 1 is that of a preview with a long side of 768 px, 2 twice
    that. Null is the size in which the network draws them, in pixels, however large the picture is."""
    mask: str | None = None
    """Where the style goes (:func:`singleshot.style.apply.regions.read_mask`); null is everywhere. This and
    `keep_faces` are for finished pictures and frames, after :func:`stylize`."""
    keep_faces: bool = False
    """Whether faces stay as in the photo."""

    def __post_init__(self) -> None:
        for name, least, most in (("strength", 0, 1), ("stroke", 0.05, 20)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Real) and least <= float(value) <= most):
                raise UserError(f"{name} is {value!r}; it has to be a number from {least:g} to {most:g}")


FULL_STYLE = StylizeSettings()


def stylize(network: TransformerNet, pictures: Tensor, settings: StylizeSettings = FULL_STYLE) -> Tensor:
    """Stylise pictures (N, 3, H, W) on the network's device; return the same shape, type and device.

    Pictures are float in [0, 1], or uint8, which takes a quarter of the memory. They run all at once, a few
    at a time, or each in tiles (:mod:`singleshot.style.apply.tiling`), as memory allows; with the setting
    `stroke`, they run at a smaller size if they are large (:mod:`singleshot.style.apply.strokes`).

    Raises:
        UserError: a side is below MIN_SIDE_PX, or memory doesn't suffice even for the smallest tile.
    """
    height, width = pictures.shape[-2:]
    check_size(width, height, "a picture")
    device = next(network.parameters()).device
    channels_last(network)
    dtype = resolve(settings.precision, str(device))
    results = torch.empty_like(pictures)
    with torch.inference_mode(), autocast(str(device), dtype):
        for first, top, stylized in _sized(network, pictures, settings.stroke):
            n, _, h, _ = stylized.shape
            photo = pictures[first : first + n, :, top : top + h]
            results[first : first + n, :, top : top + h] = finished(photo, stylized, settings)
    return results


def check_size(width: int, height: int, name: str) -> None:
    """Check that a picture or video is large enough for a network. Raises UserError if it is not."""
    if min(width, height) < MIN_SIDE_PX:
        raise UserError(f"{name}: is {width}x{height} px; sides have to be {MIN_SIDE_PX} or more")


def fits_whole(pictures: int, width: int, height: int, channels: int) -> bool:
    """Whether half of this machine's free memory holds this many pictures of width x height px at once.

    `channels` is the network's `width`.
    """
    return pictures * width * height * WHOLE_BYTES <= _memory(torch.device("cpu"), channels)


def _memory(device: torch.device, channels: int) -> int:
    """Half of the free memory, in bytes per channel of a network's `width`."""
    return free_memory(device) // 2 // channels


def finished(pictures: Tensor, stylized: Tensor, settings: StylizeSettings = FULL_STYLE) -> Tensor:
    """The result of :func:`stylize` for `pictures`, given the network's output for them in [0, 1]."""
    mixed = stylized.float().to(pictures.device).clamp(0, 1)
    if settings.preserve_color or settings.strength < 1:
        mixed = _mixed(to_float(pictures), mixed, settings)
    return mixed.mul_(255).round_().byte() if pictures.dtype == torch.uint8 else mixed.to(pictures.dtype)


def _sized(
    network: TransformerNet, pictures: Tensor, stroke: float | None
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield parts of the result like :func:`_stylized`, with strokes of the size `stroke`."""
    height, width = pictures.shape[-2:]
    small = scaled_down(pictures, small_size(height, width, stroke))
    if small is pictures:
        yield from _stylized(network, pictures)
        return
    painted = torch.empty(small.shape)
    for first, top, part in _stylized(network, small):
        painted[first : first + len(part), :, top : top + part.shape[2]] = part
    for i, photo in enumerate(pictures):
        for top, band in brought_up(photo, small[i], painted[i]):
            yield i, top, band[None]


def _stylized(network: TransformerNet, pictures: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Yield parts of the result as they come, each with the number of its first picture and its first row."""
    height, width = pictures.shape[-2:]
    device = next(network.parameters()).device
    memory = _memory(device, network.width)
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
    """Stylise a batch without tiles; None if memory doesn't suffice after all."""
    device = next(network.parameters()).device
    try:
        return network(to_float(batch.to(device)).contiguous(memory_format=torch.channels_last))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None


def _mixed(photo: Tensor, stylized: Tensor, settings: StylizeSettings) -> Tensor:
    if settings.preserve_color:
        # Y has the coefficient 1 in R, G and B, so replacing Y alone adds its difference to all three.
        stylized = photo + luma(stylized - photo)
    return torch.lerp(photo, stylized, settings.strength).clamp(0, 1)
