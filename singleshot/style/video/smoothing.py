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
from singleshot.style.apply.light import grey

Grey = NDArray[np.uint8]
"""A frame without its colours, (height, width)."""
Flow = NDArray[np.float32]
"""Displacement (x, y) in pixels of each pixel, (height, width, 2)."""
Places = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Coordinates x and y in pixels, (height, width) each."""
MIN_SIDE = 12
"""Smallest length of a frame's longer side, in pixels, that DIS accepts."""
HISTORY = 0.5
"""Fraction of a pixel's colour that comes from the previous frame. A half nearly halves the warping error;
more blurs strokes and gains little (`benchmarks/results/style_temporal.md`)."""
TOLERANCE = 10.0
"""Difference between the original and its previous frame, in grey levels from 0 to 255, at which the previous
frame still counts with a factor of 0.6; at twice this difference, the factor is 0.14."""
LEAD = 8
"""Number of frames after which earlier ones count less than one level of colour: HISTORY ** 8 is 1/256."""


def optical_flow(frame: Grey, other: Grey, preset: int = cv2.DISOPTICAL_FLOW_PRESET_MEDIUM) -> Flow:
    """Where each pixel of `frame` is in `other`: frame(p) looks like other(p + flow(p)).

    `preset` is one of OpenCV's `DISOPTICAL_FLOW_PRESET_…`. The result is the same with any number of threads.
    """
    search = cv2.DISOpticalFlow.create(preset)
    return search.calc(frame, other, None)  # type: ignore[call-overload]  # no first guess


def warp(
    picture: NDArray[np.float32], places: Places, interpolation: int = cv2.INTER_LINEAR
) -> NDArray[np.float32]:
    """The picture at `places`, bilinear by default; beyond its edges, it continues as at its edges."""
    warped = cv2.remap(picture, *places, interpolation, borderMode=cv2.BORDER_REPLICATE)
    return warped.astype(np.float32, copy=False)


def targets(flow: Flow) -> Places:
    """The places p + flow(p) to which pixels move."""
    y, x = np.indices(flow.shape[:2], np.float32)
    return x + flow[..., 0], y + flow[..., 1]


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
            change = np.square(now - warp(then.astype(np.float32), places))
            w = history * np.exp(change / (-2 * TOLERANCE**2))
            moved = warp(last, places, cv2.INTER_CUBIC)
            # OpenCV reads each once, and takes half of NumPy's time.
            smoothed = cv2.blendLinear(moved, smoothed, w, 1 - w).astype(np.float32, copy=False)
        before = now, smoothed
        yield smoothed.round().clip(0, 255).astype(np.uint8)
