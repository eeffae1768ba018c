"""Motion between two frames: optical flow by dense inverse search (DIS, Kroeger et al. 2016), and warping."""

import cv2
import numpy as np
from numpy.typing import NDArray

from tasks.data.images import Frame

Flow = NDArray[np.float32]
"""Displacement (x, y) in pixels of each pixel, (height, width, 2)."""
MIN_SIDE = 12
"""Smallest length of a frame's longer side, in pixels, that DIS accepts."""


def optical_flow(frame: Frame, other: Frame, preset: int = cv2.DISOPTICAL_FLOW_PRESET_MEDIUM) -> Flow:
    """Where each pixel of `frame` is in `other`: frame(p) looks like other(p + flow(p)).

    `preset` is one of OpenCV's `DISOPTICAL_FLOW_PRESET_…`. The result is the same with any number of threads.
    """
    search = cv2.DISOpticalFlow.create(preset)
    return search.calc(grey(frame), grey(other), None)  # type: ignore[call-overload]  # no first guess


def grey(frame: Frame) -> NDArray[np.uint8]:
    """The frame without its colours, (height, width)."""
    return cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY).astype(np.uint8, copy=False)


def warp(
    picture: NDArray[np.float32], flow: Flow, interpolation: int = cv2.INTER_LINEAR
) -> NDArray[np.float32]:
    """picture(p + flow(p)), bilinear by default; beyond its edges, the picture continues as at its edges."""
    x, y = targets(flow)
    warped = cv2.remap(picture, x, y, interpolation, borderMode=cv2.BORDER_REPLICATE)
    return warped.astype(np.float32, copy=False)


def targets(flow: Flow) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Coordinates x and y that each pixel moves to."""
    y, x = np.indices(flow.shape[:2], np.float32)
    return x + flow[..., 0], y + flow[..., 1]
