"""Picture files that are stylised: their formats, and the metadata that a stylised file keeps."""

import io
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import ExifTags, Image, ImageCms, ImageOps
from torch import Tensor

from singleshot.errors import UserError
from singleshot.io.images import open_picture, to_8_bits
from singleshot.style.transformer_net import MIN_SIDE_PX

logger = logging.getLogger(__name__)

FORMATS: dict[str, dict[str, Any]] = {
    # Colour at half the resolution (4:2:0) bleeds over the edges of strokes. WebP always has it at half, but
    # bleeds less with `use_sharp_yuv`.
    "JPEG": {"quality": 95, "subsampling": "4:4:4"},
    "PNG": {},
    "TIFF": {},
    "WEBP": {"quality": 95, "use_sharp_yuv": True},
}
"""Formats that are read and written, by Pillow's names, with the options to write them."""
TIFF_COMPRESSIONS = ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate")
"""Compressions that a TIFF keeps. The others are lossy, or for black and white only."""
TIFF_TAGS = {
    *(ExifTags.Base.ImageDescription, ExifTags.Base.Make, ExifTags.Base.Model, ExifTags.Base.Software),
    *(ExifTags.Base.DateTime, ExifTags.Base.Artist, ExifTags.Base.Copyright, ExifTags.Base.Rating),
    *(ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo),
}
"""Tags that a TIFF keeps. Among the others are tags that say how its old pixels were laid out."""


@dataclass(frozen=True)
class PictureFile:
    """The content of a picture file, upright."""

    pixels: Tensor
    """Pixels, uint8 (3, H, W)."""
    alpha: Image.Image | None
    """Opacity; None if the whole picture is opaque."""
    format: str
    """Pillow's name of the format."""
    options: dict[str, Any]
    """Arguments for saving the picture with Pillow, metadata among them."""

    def encode(self, pixels: Tensor) -> bytes:
        """A file of other pixels, uint8 (3, H, W), with this file's format, opacity and metadata.

        Raises:
            OSError, ValueError, RuntimeError: Pillow could read the metadata, but can't write them.
        """
        image = Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))
        if self.alpha is not None:
            image.putalpha(self.alpha)
        buffer = io.BytesIO()
        image.save(buffer, self.format, **self.options)
        return buffer.getvalue()


def read_picture(source: Path | BinaryIO) -> PictureFile:
    """Read a picture file in one of the `FORMATS`, with its metadata.

    Raises:
        UserError: the file is missing, damaged, of another format or of several frames, or its picture is too
            small to be stylised.
    """
    name = str(source if isinstance(source, Path) else source.name)
    with open_picture(source) as image:
        _check(image, name)
        image.load()
        return _decoded(image, name)


def picture_suffixes() -> set[str]:
    """Suffixes of the files that directories and patterns stand for."""
    return {suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS}


def _check(image: Image.Image, name: str) -> None:
    file_format = image.format
    if file_format != "MPO" and getattr(image, "n_frames", 1) > 1:
        raise UserError(f"{name}: has several frames or pages; stylise a video, or each page as a file")
    if file_format != "MPO" and file_format not in FORMATS:
        raise UserError(f"{name}: is {file_format}; convert it to one of {', '.join(FORMATS)}")
    if min(image.size) < MIN_SIDE_PX:
        width, height = image.size
        raise UserError(f"{name}: is {width}x{height} px; sides have to be {MIN_SIDE_PX} or more")


def _decoded(image: Image.Image, name: str) -> PictureFile:
    # A telephone's MPO is a JPEG with more pictures after it, such as a depth map or a second view.
    file_format = "JPEG" if image.format == "MPO" else str(image.format)
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "P":
        upright = upright.convert("RGBA" if upright.has_transparency_data else "RGB")
    alpha = upright.convert("RGBA").getchannel("A") if upright.has_transparency_data else None
    rgb, profile = _to_rgb(upright)
    options = FORMATS[file_format] | {"exif": _exif(image, name), "icc_profile": profile}
    if file_format == "TIFF":
        options["compression"] = _compression(image)
    if "dpi" in image.info:
        options["dpi"] = image.info["dpi"]
    return PictureFile(torch.from_numpy(np.array(rgb)).permute(2, 0, 1), alpha, file_format, options)


def _compression(image: Image.Image) -> str:
    """Compression for a TIFF like `image`. With EXIF directories, Pillow can only write it uncompressed."""
    if not {ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo}.isdisjoint(image.getexif()):
        return "raw"
    compression = image.info.get("compression", "raw")
    return compression if compression in TIFF_COMPRESSIONS else "tiff_lzw"


def _exif(image: Image.Image, name: str) -> bytes:
    """EXIF for pixels that are upright now, without the thumbnail, which shows the original photo."""
    exif = image.getexif()
    exif.pop(ExifTags.Base.Orientation, None)
    if image.format == "TIFF":
        for tag in set(exif) - TIFF_TAGS:
            del exif[tag]
    try:
        return exif.tobytes() if exif else b""
    except Exception as error:  # values of another type than their tags': struct.error, TypeError, …
        logger.warning("%s: its EXIF is damaged and left out (%s)", name, error)
        return b""


def _to_rgb(image: Image.Image) -> tuple[Image.Image, bytes | None]:
    """The picture in RGB and its ICC profile; in sRGB and None if the profile is for another colour space."""
    image = to_8_bits(image)
    icc = image.info.get("icc_profile")
    if icc is None:
        return image.convert("RGB"), None
    profile = ImageCms.ImageCmsProfile(io.BytesIO(icc))
    if profile.profile.xcolor_space.strip() == "RGB":
        return image.convert("RGB"), icc
    if image.mode == "LA":
        image = image.getchannel("L")
    converted = ImageCms.profileToProfile(image, profile, ImageCms.createProfile("sRGB"), outputMode="RGB")
    assert converted is not None  # None is returned only by conversion in place
    return converted, None
