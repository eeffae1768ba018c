"""The one place that reads and writes picture files. A picture is float32 RGB in [0, 1], shape (3, H, W)."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from tasks.errors import UserError


def read_rgb(source: Path | BinaryIO, *, short_side: int | None = None, enlarge: bool = True) -> Tensor:
    """The picture (3, H, W) in a file of any format that Pillow knows.

    It is turned as its EXIF orientation says, laid over white where it is transparent, and scaled (Lanczos)
    to `short_side` pixels, without `enlarge` only down; None keeps its size. Of several frames, the first.

    Raises:
        UserError: missing, damaged, truncated, no picture, or one of floating-point samples.
    """
    with _decoding(source, short_side) as picture:
        rgb = _over_white(picture)
    if short_side and (enlarge or short_side < min(rgb.size)):
        rgb = rgb.resize(_scaled(rgb.size, short_side), Image.Resampling.LANCZOS)
    return _to_tensor(rgb)


def read_alpha(source: Path | BinaryIO) -> Tensor | None:
    """Opacity (1, H, W) in [0, 1] of a picture, turned as :func:`read_rgb` turns it; None if all is opaque.

    Raises UserError as :func:`read_rgb` does.
    """
    with _decoding(source) as picture:
        alpha = picture.convert("RGBA").getchannel("A") if picture.has_transparency_data else None
    return None if alpha is None else _to_tensor(alpha)


def encode_png(picture: Tensor) -> bytes:
    """A PNG file of a picture (3, H, W), or (4, H, W) with opacity last; values are clamped and rounded."""
    return _encode(picture, "PNG")


def encode_jpeg(picture: Tensor, quality: int = 92) -> bytes:
    """A JPEG file of a picture (3, H, W); values are clamped and rounded.

    Colour has the full resolution: halved (4:2:0, the usual), it bleeds over the edges of strokes.
    """
    return _encode(picture, "JPEG", quality=quality, subsampling="4:4:4")


def side_by_side(*pictures: Tensor) -> Tensor:
    """Pictures (3, H, W_i) of one height in a row: (3, H, ΣW_i)."""
    return torch.cat(pictures, dim=-1)


@contextmanager
def _decoding(source: Path | BinaryIO, short_side: int | None = None) -> Iterator[Image.Image]:
    """The decoded picture, upright; a JPEG's may be smaller already, with twice `short_side` or more left."""
    try:
        with Image.open(source) as picture:
            if short_side:
                # libjpeg scales by 1/2, 1/4 or 1/8 as it decodes. The last half at least is left to Lanczos.
                picture.draft(None, (2 * short_side, 2 * short_side))
            yield ImageOps.exif_transpose(picture)
    except Exception as error:  # damaged bytes: OSError, SyntaxError, ValueError, struct.error, zlib.error, …
        name = source if isinstance(source, Path) else getattr(source, "name", "picture")
        # Pillow would name the object where it was given no path, with its address.
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "of no known format" if unknown else getattr(error, "strerror", None) or str(error)
        raise UserError(f"{name}: can't be read as a picture ({reason}); replace or remove it") from error


def _over_white(picture: Image.Image) -> Image.Image:
    """Any picture in RGB: 16-bit greys scaled to 8 bits (Pillow would clip them), transparency over white."""
    if picture.mode == "F":
        raise ValueError("floating-point samples have no agreed white")
    if picture.mode.startswith("I"):
        grey = np.asarray(picture, np.float32) / 257  # 65535 / 255
        return Image.fromarray(grey.round().clip(0, 255).astype(np.uint8)).convert("RGB")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    white = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")


def _scaled(size: tuple[int, int], short_side: int) -> tuple[int, int]:
    width, height = size
    scale = short_side / min(size)
    return round(width * scale), round(height * scale)


def _to_tensor(picture: Image.Image) -> Tensor:
    pixels = np.atleast_3d(np.array(picture))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous().float() / 255


def _encode(picture: Tensor, file_format: str, **options: object) -> bytes:
    pixels = picture.detach().float().clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).cpu().numpy()
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, file_format, **options)
    return buffer.getvalue()
