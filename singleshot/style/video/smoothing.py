"""Stylised frames that flicker less: each is blended with the previous one, moved as the original moved.

A network draws strokes anew in each frame. An average over time steadies them, if it follows the motion and
forgets what is no longer there, as temporal antialiasing does in computer graphics (Yang et al. 2020, "A
survey of temporal antialiasing techniques").
"""

from collections.abc import Iterable, Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

from singleshot.io.images import Frame
from singleshot.style.video.motion import MIN_SIDE, Grey, grey, optical_flow, targets, warp

HISTORY = 0.5
"""Fraction of a pixel's colour that comes from the previous frame. A half nearly halves the warping error;
more blurs strokes and gains little (`benchmarks/results/style_temporal.md`)."""
TOLERANCE = 10.0
"""Difference between the original and its previous frame, in grey levels from 0 to 255, at which the previous
frame still counts with a factor of 0.6; at twice this difference, the factor is 0.14."""
LEAD = 8
"""Number of frames after which earlier ones count less than one level of colour: HISTORY ** 8 is 1/256."""


def smooth(
    originals: Iterable[Frame], stylized: Iterable[Frame], history: float = HISTORY
) -> Iterator[Frame]:
    """S_t = s_t + w (warp(S_{t-1}) - s_t), with w = history · exp(-(I_t - warp(I_{t-1}))² / 2 TOLERANCE²).

    s are the stylised frames and I the original ones, in grey. Both are warped with the optical flow from I_t
    to I_{t-1}. Where the original shows something new, after a cut or where an object was hidden, w is near
    0. Frames that are too small for optical flow (`MIN_SIDE`) stay as they are.
    """
    before: tuple[Grey, NDArray[np.float32]] | None = None
    for original, frame in zip(originals, stylized, strict=True):
        now, smoothed = grey(original), np.ascontiguousarray(frame, np.float32)
        if before and history and max(frame.shape[:2]) >= MIN_SIDE:
            then, last = before
            places = targets(optical_flow(now, then, cv2.DISOPTICAL_FLOW_PRESET_FAST))
            w = history * _agreement(now, warp(then.astype(np.float32), places))
            smoothed = _blend(warp(last, places, cv2.INTER_CUBIC), smoothed, w)
        before = now, smoothed
        yield smoothed.round().clip(0, 255).astype(np.uint8)


def _agreement(now: Grey, then: NDArray[np.float32]) -> NDArray[np.float32]:
    """Agreement of each pixel with the previous frame, from 1 for the same down to 0: (height, width)."""
    return np.exp(np.square(now - then) / (-2 * TOLERANCE**2))


def _blend(
    last: NDArray[np.float32], frame: NDArray[np.float32], w: NDArray[np.float32]
) -> NDArray[np.float32]:
    """w last + (1 - w) frame. OpenCV reads each once, and takes half of NumPy's time."""
    return cv2.blendLinear(last, frame, w, 1 - w).astype(np.float32, copy=False)
