"""The light of a stylised frame, which the original's brightness and contrast bound.

Instance normalisation makes every frame as bright and rich in contrast as any other. Left alone, a fade to
black ends in grey, and the bars of a letterbox are grey and change with the picture between them.
"""

import cv2
import numpy as np
from numpy.typing import NDArray

from singleshot.io.images import Frame

CONTRAST = 1.5
"""How much more contrast, from the darkest to the lightest luma, a result may have than its original. With 1,
strokes would lose contrast in photos without black or white; the larger it is, the later a fade begins."""
SHADOWS = 4.0
"""How much brighter a result may be than its original around the same pixel: black stays black."""
WINDOW = np.ones((5, 5), np.uint8)
"""Pixels around one whose luma counts there, so that strokes may shift edges a little."""


def bounded(original: Frame, result: Frame) -> Frame:
    """The result with luma within the original's bounds, where it exceeds them; else as it is.

    All of it is scaled from its own range of luma to one within the original's, which is CONTRAST times as
    wide. Then each pixel that is brighter than SHADOWS times its surroundings in the original is darkened.
    A result that equals its original stays the same.
    """
    luma, own = grey(original), grey(result)
    low, high = float(luma.min()), float(luma.max())
    margin = (CONTRAST - 1) / 2 * (high - low)
    bounds = max(low - margin, 0.0), min(high + margin, 255.0)
    darkest, lightest = float(own.min()), float(own.max())
    lower, upper = np.clip([darkest, lightest], *bounds)
    if (lower, upper) != (darkest, lightest):
        scale = (upper - lower) / max(lightest - darkest, 1)
        levels = lower + (np.arange(256) - darkest) * scale
        result = cv2.LUT(result, levels.round().clip(0, 255).astype(np.uint8)).astype(np.uint8, copy=False)
        own = grey(result)
    around = SHADOWS * cv2.dilate(luma, WINDOW).astype(np.float32)
    share = around / np.maximum(cv2.dilate(own, WINDOW), 1)
    if share.min() >= 1:
        return result
    return (result * np.minimum(share, 1)[..., None]).round().astype(np.uint8)


def grey(frame: Frame) -> NDArray[np.uint8]:
    """Luma (height, width) of a frame."""
    return cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY).astype(np.uint8, copy=False)
