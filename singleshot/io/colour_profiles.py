"""Colour profiles (ICC): pictures of any colour space as sRGB, which networks are trained on, and back.

A picture without a profile is sRGB, unless its file says in other ways which colours it means: primaries and
gamma in a PNG, Adobe RGB in a camera's EXIF, a display's primaries in HEIF.
"""

import io
import logging
import struct
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageCms

logger = logging.getLogger(__name__)

MODES = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK", "LAB": "LAB"}
"""Pillow's mode for the colour space of a profile."""
ROUNDING = 2
"""Largest difference in levels between Little CMS's sRGB and the profiles of sRGB that files have."""
D50 = np.array([0.9642, 1.0, 0.8249])
BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])
"""From XYZ to responses of the eye's cones (ICC.1:2010, E.1)."""
D65 = (0.3127, 0.329)
SRGB_PRIMARIES = ((0.64, 0.33), (0.3, 0.6), (0.15, 0.06))
P3_PRIMARIES = ((0.68, 0.32), (0.265, 0.69), (0.15, 0.06))
BT2020_PRIMARIES = ((0.708, 0.292), (0.17, 0.797), (0.131, 0.046))
ADOBE_PRIMARIES = ((0.64, 0.33), (0.21, 0.71), (0.15, 0.06))
ADOBE_GAMMA = 563 / 256
"""Of Adobe RGB (1998), 4.3.1.2."""
H273_PRIMARIES = {9: BT2020_PRIMARIES, 11: P3_PRIMARIES, 12: P3_PRIMARIES}
"""Primaries by their code in ITU-T H.273, as HEIF and videos have it, where they are wider than sRGB's."""


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


def stated_profile(picture: Image.Image) -> bytes | None:
    """The profile in a picture's file, or one for colours that it states otherwise; None for sRGB."""
    info = picture.info
    if icc := info.get("icc_profile"):
        return icc
    if picture.mode not in ("RGB", "RGBA", "P"):
        return None
    if "srgb" not in info and ("chromaticity" in info or "gamma" in info):  # PNG
        white, *primaries = np.reshape(info.get("chromaticity", (*D65, *np.ravel(SRGB_PRIMARIES))), (4, 2))
        stated = rgb_profile(tuple(map(tuple, primaries)), 1 / info.get("gamma", 1 / 2.2), tuple(white))
        near = np.abs(np.array(primaries) - SRGB_PRIMARIES).max() < 0.005
        return None if near and abs(info.get("gamma", 1 / 2.2) - 1 / 2.2) < 0.01 else stated
    exif = picture.getexif().get_ifd(ExifTags.IFD.Exif)
    interoperability = picture.getexif().get_ifd(ExifTags.IFD.Interop)
    if exif.get(ExifTags.Base.ColorSpace) == 2 or interoperability.get(1) == "R03":  # Exif 2.3, 4.6.5
        return rgb_profile(ADOBE_PRIMARIES, ADOBE_GAMMA)
    nclx: dict[str, Any] = info.get("nclx_profile") or {}
    primaries_code = int(nclx.get("color_primaries", 1))
    return rgb_profile(H273_PRIMARIES[primaries_code], None) if primaries_code in H273_PRIMARIES else None


@lru_cache(maxsize=64)
def rgb_profile(
    primaries: tuple[tuple[float, float], ...], gamma: float | None, white: tuple[float, float] = D65
) -> bytes:
    """An ICC profile of a space with these primaries and white (x, y); a `gamma` of None is sRGB's curve."""
    adapted = _to_d50(primaries, white)
    if gamma is None:  # ICC.1:2010, 10.16: Y = (aX + b)^g from X = d on, else cX
        values = [2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045]
        curve = b"para" + bytes(4) + struct.pack(">HH", 3, 0) + b"".join(map(_fixed, values))
    else:
        curve = b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256)) + bytes(2)
    name = "RGB".encode("utf-16-be")
    text = b"mluc" + bytes(4) + struct.pack(">II2s2sII", 1, 12, b"en", b"US", len(name), 28) + name + bytes(2)
    tags = {b"desc": text, b"cprt": text, b"wtpt": _xyz(D50)}
    tags |= {name: _xyz(adapted[:, i]) for i, name in enumerate((b"rXYZ", b"gXYZ", b"bXYZ"))}
    tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve)
    table, body, start = b"", b"", 128 + 4 + 12 * len(tags)
    for tag, data in tags.items():
        table += tag + struct.pack(">II", start + len(body), len(data))
        body += data
    version, signatures = b"\x04\x20\0\0", b"mntrRGB XYZ "
    header = struct.pack(
        ">I4x4s12s12x4s28x12s48x", start + len(body), version, signatures, b"acsp", _xyz(D50)[8:]
    )
    return header + struct.pack(">I", len(tags)) + table + body


def rgb_to_xyz(primaries: tuple[tuple[float, float], ...], white: tuple[float, float] = D65) -> NDArray:
    """The matrix from linear RGB to XYZ in which RGB = (1, 1, 1) is the white point (SMPTE RP 177)."""
    columns = np.array([(x / y, 1, (1 - x - y) / y) for x, y in primaries]).T
    x, y = white
    return columns * np.linalg.solve(columns, [x / y, 1, (1 - x - y) / y])


def _to_d50(primaries: tuple[tuple[float, float], ...], white: tuple[float, float]) -> NDArray:
    """:func:`rgb_to_xyz`, adapted to a profile's white."""
    matrix = rgb_to_xyz(primaries, white)
    cones = BRADFORD @ matrix
    return np.linalg.solve(BRADFORD, (BRADFORD @ D50 / cones.sum(axis=1))[:, None] * cones)


def _fixed(value: float) -> bytes:
    return struct.pack(">i", round(value * 65536))


def _xyz(values: NDArray) -> bytes:
    return b"XYZ " + bytes(4) + b"".join(map(_fixed, values))


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
