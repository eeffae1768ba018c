"""Pictures of clients: which ones are taken, and how they are decoded and encoded."""

import io
import math
from typing import Literal, get_args

from PIL import Image
from starlette.exceptions import HTTPException
from torch import Tensor

from tasks.data.images import encode_jpeg, encode_png, read_rgb, read_size
from tasks.errors import UserError

# Few and common formats, since clients' bytes run through each decoder. MPO is a telephone's JPEG.
FORMATS = ("PNG", "JPEG", "MPO", "WEBP")
READ = ("image/png", "image/jpeg", "image/webp")
"""Media types of pictures in requests."""
Written = Literal["image/png", "image/jpeg"]
WRITTEN: tuple[Written, ...] = get_args(Written)
"""Media types of pictures in answers, in the order of preference."""


def decode(body: bytes, max_pixels: int, min_side: int = 1) -> Tensor:
    """The picture (3, H, W) in [0, 1] in a file.

    Raises:
        HTTPException: it is none, or too large or small.
    """
    try:
        # By the header alone, so a bomb of a small file and a huge picture does no harm.
        width, height = read_size(io.BytesIO(body), FORMATS)
    except UserError as error:
        if isinstance(error.__cause__, Image.DecompressionBombError):
            raise HTTPException(413, str(error)) from None
        raise HTTPException(422, f"the body is no whole picture in one of {', '.join(READ)}") from None
    if width * height > max_pixels:
        side = math.isqrt(max_pixels)
        most = f"at most {max_pixels} (as {side}x{side}) are taken"
        raise HTTPException(413, f"{width}x{height} pixels; {most}")
    if min(width, height) < min_side:
        raise HTTPException(422, f"{width}x{height} pixels; sides have to be {min_side} or more")
    try:
        return read_rgb(io.BytesIO(body), formats=FORMATS)
    except UserError as error:
        raise HTTPException(422, str(error)) from None


def encode(picture: Tensor, media_type: Written) -> bytes:
    """A file of a picture (3, H, W) in [0, 1]."""
    return encode_png(picture) if media_type == "image/png" else encode_jpeg(picture)
