"""Stylises a picture of any size in the memory of a tile, with the same result as for the whole picture.

Tiles that are stylised separately show seams, because an instance norm takes mean and variance over its whole
map, and each tile has its own. The mean and variance of a thumbnail (URST, Chen et al. 2022) are near those
of the whole map, but not equal. Here they are those of the whole map, and yet every convolution is computed
only once. A tile is a band of whole rows. Maps are lazy: a convolution, an upsampling or a sum only knows
which rows of its input it needs for given rows of its output. A norm computes its input band by band, writes
it to a temporary file, and gathers mean and variance on the way; from then on it can compute any rows of its
output.

Besides the picture and the result, there is only a band in memory, and the eight more rows that a 9x9
convolution needs, however high the picture is. The files take at most 8 bytes per pixel and channel of the
first convolution (2.1 GB for 3840x2160 and 32 channels in float32; half in bfloat16).
"""

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional

from singleshot.errors import UserError, explained, is_out_of_memory
from singleshot.style.transformer_net import Residual, TransformerNet

CGROUP = Path("/sys/fs/cgroup")
"""Of version 2, in a container."""


@dataclass
class Tile:
    """Number of rows of a map that are computed at a time; halved when memory runs out."""

    rows: int

    def halve(self) -> None:
        """Halve the number of rows. Raises UserError if it is one."""
        if self.rows == 1:
            raise UserError("out of memory even for tiles of one row; close programs or scale it down")
        self.rows //= 2


@torch.inference_mode()
def stylized_bands(network: TransformerNet, picture: Tensor, tile: Tile) -> Iterator[tuple[int, Tensor]]:
    """Stylise `picture` (1, 3, H, W) with `network`, in bands from top to bottom.

    Yields the position of each band's first row and the band's rows (1, 3, h, W), on the network's device.
    The picture may be float in [0, 1], or uint8, which is converted a band at a time. Temporary files are in
    `$TMPDIR`, or else in `/var/tmp`, since `/tmp` may be in memory; they have no names, so that nothing is
    left of them however the process ends.

    Raises:
        UserError: there is no room for the files, or no memory for the smallest tile.
    """
    device = next(network.parameters()).device
    _, channels, height, width = picture.shape
    below, right = -height % 4, -width % 4
    source = _Map(channels, height, width, lambda top, bottom: to_float(picture[:, :, top:bottom].to(device)))

    def rows(top: int, bottom: int) -> Tensor:
        padded = functional.pad(source.reflected(top, bottom), (0, right, 0, 0), mode="reflect")
        return network.to_input(padded).contiguous(memory_format=torch.channels_last)

    output = _apply(network.stages, _Map(channels, height + below, width + right, rows), tile)
    cropped = _Map(
        channels,
        height,
        width,
        lambda top, bottom: network.from_output(output.rows(top, bottom))[..., :width],
    )
    yield from cropped.bands(tile)


def to_float(pixels: Tensor) -> Tensor:
    """Values in [0, 1] of a picture that has such values or 8-bit ones."""
    return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels.float()


def free_memory(device: torch.device) -> int:
    """Bytes that are still available: on a GPU, or on the machine and in the container (cgroup) around us."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    available = psutil.virtual_memory().available
    with suppress(OSError, ValueError, KeyError):  # no container, or no limit: "max"
        limit, usage = (int((CGROUP / name).read_text("utf-8")) for name in ("memory.max", "memory.current"))
        statistics = dict(line.split() for line in (CGROUP / "memory.stat").read_text("utf-8").splitlines())
        available = min(available, limit - usage + int(statistics["inactive_file"]))
    return available


@dataclass(frozen=True)
class _Map:
    """A feature map (1, channels, height, width), any rows of which can be computed."""

    channels: int
    height: int
    width: int
    rows: Callable[[int, int], Tensor]
    """Function that computes rows `top` to before `bottom`: (1, channels, bottom - top, width)."""

    def bands(self, tile: Tile) -> Iterator[tuple[int, Tensor]]:
        """Yield all rows from the top down, in bands of a tile, each with the position of its first row."""
        top = 0
        while top < self.height:
            bottom = min(top + tile.rows, self.height)
            try:
                band = self.rows(top, bottom)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                tile.halve()
                continue
            yield top, band
            top = bottom

    def reflected(self, top: int, bottom: int) -> Tensor:
        """Rows of the map, which its mirror image continues beyond the top and bottom edges."""
        if top >= 0 and bottom <= self.height:
            return self.rows(top, bottom)
        last = self.height - 1
        mirrored = last - (last - torch.arange(top, bottom).abs()).abs()
        first = int(mirrored.min())
        return self.rows(first, int(mirrored.max()) + 1)[:, :, mirrored - first]


def _apply(module: nn.Module, x: _Map, tile: Tile) -> _Map:
    match module:
        case nn.Sequential():
            for part in module:
                x = _apply(part, x, tile)
            return x
        case Residual():
            y = _apply(module.body, x, tile)
            return _Map(x.channels, x.height, x.width, lambda *rows: x.rows(*rows) + y.rows(*rows))
        case nn.Conv2d():
            return _convolved(x, module)
        case nn.InstanceNorm2d():
            return _normalized(x, module, tile)
        case nn.ReLU():
            return _Map(x.channels, x.height, x.width, lambda top, bottom: x.rows(top, bottom).relu())
        case nn.Upsample(scale_factor=float() as factor):
            return _upsampled(x, int(factor))
    raise TypeError(f"tiles can't run {module}")


def _upsampled(x: _Map, factor: int) -> _Map:
    def rows(top: int, bottom: int) -> Tensor:
        first, stop = top // factor, -(-bottom // factor)
        y = functional.interpolate(x.rows(first, stop), scale_factor=factor, mode="nearest")
        return y[:, :, top - first * factor : bottom - first * factor]

    return _Map(x.channels, x.height * factor, x.width * factor, rows)


def _convolved(x: _Map, conv: nn.Conv2d) -> _Map:
    kernel, stride, padding = conv.kernel_size[0], conv.stride[0], int(conv.padding[0])

    def rows(top: int, bottom: int) -> Tensor:
        y = x.reflected(top * stride - padding, (bottom - 1) * stride - padding + kernel)
        y = functional.pad(y, (padding, padding, 0, 0), mode="reflect")
        return functional.conv2d(y, conv.weight, conv.bias, stride)

    height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (x.height, x.width))
    return _Map(conv.out_channels, height, width, rows)


def _normalized(x: _Map, norm: nn.InstanceNorm2d, tile: Tile) -> _Map:
    stored, count = _RowFile(), 0
    sums = squares = torch.zeros(())
    for top, band in x.bands(tile):
        stored.write(top, band)
        variance, mean = (m.double() for m in torch.var_mean(band.float(), dim=(0, 2, 3), correction=0))
        n = band[0, 0].numel()
        count, sums, squares = count + n, sums + n * mean, squares + n * (variance + mean**2)
    mean = sums / count
    scale = norm.weight * (squares / count - mean**2 + norm.eps).rsqrt()
    shift = norm.bias - mean * scale
    scale, shift = (values.float().view(1, -1, 1, 1) for values in (scale, shift))

    def rows(top: int, bottom: int) -> Tensor:
        y = stored.read(top, bottom)
        return y.float().mul_(scale).add_(shift).to(y.dtype)

    return _Map(x.channels, x.height, x.width, rows)


class _RowFile:
    """Rows of a map in a temporary file, which lasts as long as this object."""

    def __init__(self) -> None:
        self._directory = os.environ.get("TMPDIR", "/var/tmp")
        with self._disk():
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._like = torch.empty(0)
        """An empty tensor (0, width, channels) with the width, channels, type and device of all bands."""

    def write(self, top: int, band: Tensor) -> None:
        """Store `band` (1, C, h, W) as the rows from `top` on."""
        rows = band[0].permute(1, 2, 0)
        self._like = rows.new_empty(0, *rows.shape[1:])
        with self._disk():
            self._file.seek(top * self._row_bytes)
            self._file.write(_bytes(rows.contiguous().cpu()))
            self._file.flush()

    def read(self, top: int, bottom: int) -> Tensor:
        """Rows `top` to before `bottom`, (1, C, h, W)."""
        rows = torch.empty(bottom - top, *self._like.shape[1:], dtype=self._like.dtype)
        with self._disk():
            self._file.seek(top * self._row_bytes)
            self._file.readinto(_bytes(rows))
        return rows.to(self._like.device).permute(2, 0, 1)[None]

    @property
    def _row_bytes(self) -> int:
        _, width, channels = self._like.shape
        return width * channels * self._like.itemsize

    def _disk(self) -> AbstractContextManager[None]:
        what = f"{self._directory}: can't hold the maps of a picture in tiles"
        return explained(what, "set TMPDIR to a directory with room for them", OSError)


def _bytes(tensor: Tensor) -> memoryview:
    # Flattened first, since a map with one channel may have any last stride, which allows no view of bytes.
    return tensor.flatten().view(torch.uint8).numpy().data
