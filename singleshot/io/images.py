"""The one place that reads and writes picture files. A picture is float32 RGB in [0, 1], shape (3, H, W)."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from singleshot.errors import UserError

# Pillow refuses pictures above 179 megapixels and warns above 89. A photo of 100 megapixels is read like any
# other here, and the server, whose limit is lower, refuses it by its header.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)
LUMA = (0.299, 0.587, 0.114)
"""Weights of R, G and B in luma (ITU-R BT.601), as in Pillow and torchvision."""
Frame = NDArray[np.uint8]
"""A frame of a video: upright RGB pixels, (height, width, 3)."""


class NamedBytes(io.BytesIO):
    """The content of a file, with a name for error messages."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


def read_rgb(
    source: Path | BinaryIO,
    *,
    short_side: int | None = None,
    enlarge: bool = True,
    formats: tuple[str, ...] | None = None,
) -> Tensor:
    """Read the picture (3, H, W) in a file of one of Pillow's `formats`; None allows all.

    The picture is turned as its EXIF orientation says, laid over white where it is transparent, and scaled
    (Lanczos) to a short side of `short_side` pixels; None keeps its size. Without `enlarge`, it is only
    scaled down. Of several frames, the first is read.

    Raises:
        UserError: the file is missing, damaged, truncated, or no picture, or its samples are floating-point.
    """
    with open_picture(source, formats) as picture:
        if short_side:
            # libjpeg scales by 1/2, 1/4 or 1/8 while it decodes. At least the last factor of 1/2 is left to
            # Lanczos.
            picture.draft(None, (2 * short_side, 2 * short_side))
        rgb = _over_white(ImageOps.exif_transpose(picture))
    if short_side and (enlarge or short_side < min(rgb.size)):
        rgb = rgb.resize(_scaled(rgb.size, short_side), Image.Resampling.LANCZOS)
    return _to_tensor(rgb)


def read_size(source: Path | BinaryIO, formats: tuple[str, ...] | None = None) -> tuple[int, int]:
    """Width and height of the picture in a file, read from its header without decoding any pixel.

    Raises:
        UserError: the file is missing, no picture in one of the formats, or so large that Pillow refuses to
            decode it; in the last case, the error's cause is `PIL.Image.DecompressionBombError`.
    """
    with open_picture(source, formats) as picture:
        return picture.size


@contextmanager
def open_picture(source: Path | BinaryIO, formats: tuple[str, ...] | None = None) -> Iterator[Image.Image]:
    """Open a file as a Pillow image, whose pixels are not decoded yet.

    Raises:
        UserError: the file can't be read as a picture, or the body of the `with` statement raised an
            error, e.g. when it decoded damaged bytes.
    """
    try:
        with Image.open(source, formats=formats) as picture:
            yield picture
    except UserError:
        raise
    except Exception as error:  # damaged bytes: OSError, SyntaxError, ValueError, struct.error, zlib.error, …
        name = source if isinstance(source, Path) else getattr(source, "name", "picture")
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):  # Pillow's message would have an object's address.
            reason = "empty, or of no known format"
        if isinstance(error, Image.DecompressionBombError):  # Pillow suspects an attack.
            reason = f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels"
        raise UserError(
            f"{name}: can't be read as a picture ({reason}); give another copy of it, or leave it out"
        ) from error


def to_8_bits(picture: Image.Image) -> Image.Image:
    """Convert a picture to 8 bits per sample. 16-bit greys are scaled; Pillow would clip them.

    Raises:
        ValueError: the picture's samples are floating-point numbers.
    """
    if picture.mode == "F":
        raise ValueError("floating-point samples have no agreed white")
    if not picture.mode.startswith("I"):
        return picture
    grey = np.asarray(picture, np.float32) / 257  # 65535 / 255
    scaled = Image.fromarray(grey.round().clip(0, 255).astype(np.uint8))
    scaled.info = dict(picture.info)  # above all its colour profile
    if "transparency" in scaled.info:  # the grey that is transparent
        scaled.info["transparency"] = round(scaled.info["transparency"] / 257)
    return scaled


def encode_png(picture: Tensor) -> bytes:
    """A PNG file of a picture (3, H, W); values are clamped and rounded."""
    return _encode(picture, "PNG")


def encode_jpeg(picture: Tensor, quality: int = 92) -> bytes:
    """A JPEG file of a picture (3, H, W); values are clamped and rounded.

    Colour has the full resolution: at the usual half resolution (4:2:0), it bleeds over the edges of strokes.
    """
    return _encode(picture, "JPEG", quality=quality, subsampling="4:4:4")


def side_by_side(*pictures: Tensor) -> Tensor:
    """Pictures (3, H, W_i) of one height in a row: (3, H, ΣW_i)."""
    return torch.cat(pictures, dim=-1)


def _over_white(picture: Image.Image) -> Image.Image:
    """Any picture in RGB, over white where it is transparent."""
    picture = to_8_bits(picture)
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    white = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")


def _scaled(size: tuple[int, int], short_side: int) -> tuple[int, int]:
    width, height = size
    scale = short_side / min(size)
    return round(width * scale), round(height * scale)


def _to_tensor(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().float() / 255


def _encode(picture: Tensor, file_format: str, **options: object) -> bytes:
    pixels = picture.detach().float().clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).cpu().numpy()
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, file_format, **options)
    return buffer.getvalue()
