"""Colour profiles (ICC): pictures of any colour space as sRGB, which networks are trained on, and back.

A picture without a profile is sRGB.
"""

import io
from functools import lru_cache
from itertools import product

import numpy as np
from PIL import Image, ImageCms

MODES = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK", "LAB": "LAB"}
"""Pillow's mode for the colour space of a profile."""
ROUNDING = 2
"""Largest difference in levels between Little CMS's sRGB and the profiles of sRGB that files have."""


def to_srgb(picture: Image.Image, icc: bytes | None) -> Image.Image:
    """A picture of 8 bits per sample in sRGB (mode RGB), without its opacity."""
    if picture.mode == "LAB":
        return _converted(picture, _transform(None, "LAB", to_srgb=True))
    space = mode_of(icc)
    if icc is None or space is None or _is_srgb(icc):
        return picture.convert("RGB")
    modes = {"L": ("L", "LA", "1"), "CMYK": ("CMYK",)}.get(space)
    if modes and picture.mode not in modes:  # e.g. colours, about which a grey profile says nothing
        return picture.convert("RGB")
    return _converted(picture.convert(space), _transform(icc, space, to_srgb=True))


def from_srgb(picture: Image.Image, icc: bytes) -> Image.Image:
    """The same colours of a picture in sRGB in a profile's space, as far as that has them.

    Raises:
        ImageCms.PyCMSError: the profile is only for reading.
    """
    space = mode_of(icc)
    if space is None or _is_srgb(icc):
        return picture
    return _converted(picture, _transform(icc, space, to_srgb=False))


@lru_cache(maxsize=64)
def mode_of(icc: bytes | None) -> str | None:
    """Pillow's mode of the pictures that a profile is for; None for none, or one that can't be used."""
    if icc is None:
        return None
    try:
        return MODES.get(ImageCms.ImageCmsProfile(io.BytesIO(icc)).profile.xcolor_space.strip().upper())
    except (OSError, ImageCms.PyCMSError):
        return None


@lru_cache(maxsize=64)
def _is_srgb(icc: bytes) -> bool:
    """Whether a profile's colours are sRGB's, but for rounding."""
    if mode_of(icc) != "RGB":
        return False
    colours = np.array(list(product(range(0, 256, 17), repeat=3)), np.uint8)[None]
    shown = np.asarray(_converted(Image.fromarray(colours), _transform(icc, "RGB", to_srgb=True)))
    return bool(np.abs(shown.astype(int) - colours).max() <= ROUNDING)


@lru_cache(maxsize=64)
def _transform(icc: bytes | None, space: str, *, to_srgb: bool) -> ImageCms.ImageCmsTransform:
    """Between a profile, or CIELAB, and sRGB."""
    own = ImageCms.ImageCmsProfile(io.BytesIO(icc)) if icc else ImageCms.createProfile("LAB")
    srgb = ImageCms.createProfile("sRGB")
    if to_srgb:
        return ImageCms.buildTransform(own, srgb, space, "RGB")
    return ImageCms.buildTransform(srgb, own, "RGB", space)


def _converted(picture: Image.Image, transform: ImageCms.ImageCmsTransform) -> Image.Image:
    converted = ImageCms.applyTransform(picture, transform)
    assert converted is not None  # None is returned only by conversion in place
    return converted
