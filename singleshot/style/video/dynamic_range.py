"""Frames of high dynamic range (PQ, HLG) or wide primaries, as players show them on an ordinary display.

Networks are trained on sRGB, and results are H.264 of 8 bits. So the light of a frame is computed, highlights
above white are compressed, and the result is in BT.709.
"""

from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from singleshot.io.colour_profiles import H273_PRIMARIES, SRGB_PRIMARIES, rgb_to_xyz
from singleshot.io.images import Frame

PQ, HLG = 16, 18
"""Codes of ITU-T H.273 for the transfer functions of SMPTE ST 2084 and ARIB STD-B67."""
WHITE_NITS = 203.0
"""Light of a white sheet in HDR (ITU-R BT.2408), which becomes white in SDR."""
HLG_PEAK_NITS = 1000.0
HLG_GAMMA = 1.2
"""Exponent of the light of a display of that peak (ITU-R BT.2100, table 5)."""
SDR_GAMMA = 2.4
"""Of an ordinary display (ITU-R BT.1886)."""
KNEE = 0.8
"""Light, with white as 1, up to which nothing is compressed."""
Light = NDArray[np.float32]
"""Linear RGB, (height, width, 3); white is 1."""


def is_wide(primaries: int, transfer: int) -> bool:
    """Whether colours of these codes of ITU-T H.273 have to be converted for an ordinary display."""
    return transfer in (PQ, HLG) or primaries in H273_PRIMARIES


def to_bt709(codes: NDArray[np.uint16], primaries: int, transfer: int) -> Frame:
    """Samples of 16 bits (height, width, 3), with the codes of their colours, as 8 bits in BT.709."""
    light = _linear(transfer)[codes]
    if transfer == HLG:  # Y^(γ-1) E, with the luminance Y of BT.2020's primaries (ITU-R BT.2100, table 5)
        luminance = light @ np.array([0.2627, 0.678, 0.0593], np.float32)
        light *= np.power(luminance, HLG_GAMMA - 1, dtype=np.float32)[..., None] * (
            HLG_PEAK_NITS / WHITE_NITS
        )
    if primaries in H273_PRIMARIES:
        matrix = np.linalg.solve(rgb_to_xyz(SRGB_PRIMARIES), rgb_to_xyz(H273_PRIMARIES[primaries]))
        light = cv2.transform(light, matrix.astype(np.float32)).astype(np.float32, copy=False)
    light = _tone_mapped(np.maximum(light, 0))
    return (np.power(light, 1 / SDR_GAMMA) * 255).round().astype(np.uint8)


def _tone_mapped(light: Light) -> Light:
    """k + (1 - k) x / (x + 1 - k) of x = light - k above the knee k, by the largest of R, G and B.

    The curve has no bend at the knee, and reaches 1 only for endless light (after Reinhard et al. 2002).
    Hues stay, as R, G and B are scaled alike.
    """
    peak = light.max(axis=-1)
    above = np.maximum(peak - KNEE, 0)
    compressed = KNEE + (1 - KNEE) * above / (above + 1 - KNEE)
    scale = np.where(above > 0, compressed / np.maximum(peak, KNEE), 1)
    return np.minimum(light * scale[..., None], 1).astype(np.float32, copy=False)


@lru_cache(maxsize=4)
def _linear(transfer: int) -> NDArray[np.float32]:
    """Light of each of 65,536 codes; for HLG, of the scene, with a peak of 1."""
    code = np.arange(65536) / 65535
    if transfer == PQ:  # SMPTE ST 2084, eq. 4.1
        m1, m2, c1, c2, c3 = 1305 / 8192, 2523 / 32, 107 / 128, 2413 / 128, 2392 / 128
        power = code ** (1 / m2)
        light = 10_000 / WHITE_NITS * (np.maximum(power - c1, 0) / (c2 - c3 * power)) ** (1 / m1)
    elif transfer == HLG:  # ITU-R BT.2100, table 5
        a = 0.17883277
        b, c = 1 - 4 * a, 0.5 - a * np.log(4 * a)
        light = np.where(code <= 0.5, code**2 / 3, (np.exp((code - c) / a) + b) / 12)
    else:
        light = code**SDR_GAMMA
    return light.astype(np.float32)
