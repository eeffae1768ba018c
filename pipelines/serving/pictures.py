"""Pictures from clients: which ones are accepted, and how pictures are decoded and encoded."""

import io
import math
from typing import Literal, get_args

from PIL import Image
from starlette.exceptions import HTTPException
from torch import Tensor

from singleshot.errors import UserError
from singleshot.io.images import encode_jpeg, encode_png, read_rgb, read_size

# What phones, cameras and browsers make. Each further decoder would be exposed to clients' bytes too.
FORMATS = ("PNG", "JPEG", "WEBP", "HEIF", "AVIF", "GIF", "BMP")
READ = (
    *("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "image/avif"),
    *("image/gif", "image/bmp"),
)
"""Media types of pictures in requests."""
Written = Literal["image/png", "image/jpeg"]
WRITTEN: tuple[Written, ...] = get_args(Written)
"""Media types of pictures in answers, in the order of preference."""


def decode(body: bytes, max_pixels: int, min_side: int = 1) -> Tensor:
    """Decode a file to a picture (3, H, W) in [0, 1].

    Raises:
        HTTPException: the file is not a picture, or the picture is too large or too small.
    """
    try:
        # The header is enough, so a decompression bomb (a small file of a huge picture) does no harm.
        width, height = read_size(io.BytesIO(body), FORMATS)
    except UserError as error:
        if isinstance(error.__cause__, Image.DecompressionBombError):
            raise HTTPException(413, str(error)) from None
        raise HTTPException(422, f"the body is not a whole picture in one of {', '.join(READ)}") from None
    if width * height > max_pixels:
        side = math.isqrt(max_pixels)
        most = f"at most {max_pixels} (as {side}x{side}) are accepted"
        raise HTTPException(413, f"{width}x{height} pixels; {most}")
    if min(width, height) < min_side:
        raise HTTPException(422, f"{width}x{height} pixels; sides have to be {min_side} or more")
    try:
        return read_rgb(io.BytesIO(body), formats=FORMATS)
    except UserError as error:
        raise HTTPException(422, str(error)) from None


def encode(picture: Tensor, media_type: Written) -> bytes:
    """Encode a picture (3, H, W) in [0, 1] as a file."""
    return encode_png(picture) if media_type == "image/png" else encode_jpeg(picture)
