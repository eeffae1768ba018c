"""Pictures of any colour space as sRGB, on which networks are trained, and back.

Colours are told by a profile (ICC), by codes (ITU-T H.273, as films have them) or, in a PNG, by numbers.
Otherwise, a picture is sRGB.
"""

import io
from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

MODES = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK", "LAB": "LAB"}
"""Pillow's mode for the colour space of a profile."""
BT709 = (0.3127, 0.3290, 0.64, 0.33, 0.30, 0.60, 0.15, 0.06)
"""x and y of white, red, green and blue; they are sRGB's, too."""
WIDE = {
    9: (0.3127, 0.3290, 0.708, 0.292, 0.170, 0.797, 0.131, 0.046),
    11: (0.314, 0.351, 0.680, 0.320, 0.265, 0.690, 0.15, 0.06),
    12: (0.3127, 0.3290, 0.680, 0.320, 0.265, 0.690, 0.15, 0.06),
}
"""The same by codes (ITU-T H.273) of BT.2020's primaries, and of P3's with two white points."""
HDR = {16: "PQ", 18: "HLG"}
"""Codes of the transfer functions of SMPTE ST 2084 and ARIB STD-B67."""
TRANSFERS: Mapping[int, str | float] = {8: 1.0, **HDR}
"""Codes of transfer functions other than sRGB's and the like: an exponent of light, or a function's name."""
WHITE, PEAK = 203, 1000
"""Light in cd/m2 of a white sheet in HDR (ITU-R BT.2408), which is white in sRGB, and of HLG's 1."""
ROUNDING = 2
"""Largest difference in levels between Little CMS's sRGB and the profiles of sRGB that files have."""


class Coding(NamedTuple):
    """Colours that are told without a profile, and are not sRGB's."""

    chromaticities: tuple[float, ...]
    transfer: str | float

    def __str__(self) -> str:
        is_hdr = self.transfer in HDR.values()
        return f"is HDR ({self.transfer}), mapped to SDR" if is_hdr else "has other colours, mapped to sRGB"

    def in_srgb(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The same colours (H, W, 3) in sRGB, as far as it has them; of HDR, light up to a white sheet's."""
        table, own = self._light(np.arange(256) / 255), _to_xyz(self.chromaticities)
        matrix = np.linalg.solve(_to_xyz(BT709), own)
        matrix /= matrix.sum(1, keepdims=True)  # its white is white
        shown = np.empty_like(pixels)
        for row, codes in zip(shown, pixels, strict=True):  # all of them would take ten times as much memory
            light = table[codes]
            if self.transfer == "HLG":
                light *= PEAK / WHITE * (light @ own[1])[:, None] ** 0.2
            light = (light @ matrix.T).clip(0, 1)
            srgb = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
            row[:] = np.round(255 * srgb)
        return shown

    def _light(self, code: NDArray[np.float64]) -> NDArray[np.float64]:
        """Light, 1 for white, of codes from 0 to 1; for HLG the scene's, 1 for its peak (ITU-R BT.2100)."""
        if self.transfer == "PQ":
            root = code ** (32 / 2523)
            share = np.maximum(root - 0.8359375, 0) / (18.8515625 - 18.6875 * root)
            return 10_000 / WHITE * share ** (8192 / 1305)
        if self.transfer == "HLG":
            bright = (np.exp((code - 0.55991073) / 0.17883277) + 0.28466892) / 12
            return np.where(code <= 0.5, code**2 / 3, bright)
        if isinstance(self.transfer, float):
            return code**self.transfer
        return np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)


def coding_of(info: Mapping[Any, Any]) -> Coding | None:
    """What a picture's `info` tells of its colours; None for a profile and for sRGB, rounded or not."""
    if codes := info.get("cicp"):
        coding = Coding(WIDE.get(codes[0], BT709), TRANSFERS.get(codes[1], "sRGB"))
    else:
        exponent, points = 1 / (info.get("gamma") or 1 / 2.2), info.get("chromaticity", BT709)
        if points[1] <= 0 or abs(np.linalg.det(_points(points)[:, 1:])) < 0.01:  # no triangle, e.g. all 0
            points = BT709
        numbers = Coding(points, "sRGB" if abs(exponent - 2.2) < 0.05 else exponent)
        coding = Coding(BT709, "sRGB") if "srgb" in info else numbers
    is_srgb = coding.transfer == "sRGB" and np.allclose(coding.chromaticities, BT709, atol=2e-3)
    return None if is_srgb or info.get("icc_profile") else coding


def _to_xyz(chromaticities: tuple[float, ...]) -> NDArray[np.float64]:
    """Matrix from light of red, green and blue to XYZ, with Y = 1 for white."""
    white, primaries = np.split(_points(chromaticities), [1], axis=1)
    return primaries * np.linalg.solve(primaries, white[:, 0] / white[1])


def _points(chromaticities: tuple[float, ...]) -> NDArray[np.float64]:
    """x, y and z (3, 4) of white, red, green and blue."""
    x, y = np.reshape(chromaticities, (4, 2)).T
    return np.stack([x, y, 1 - x - y])


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
