"""Motion between two frames: optical flow by dense inverse search (DIS, Kroeger et al. 2016), and warping."""

import cv2
import numpy as np
from numpy.typing import NDArray

from singleshot.io.images import Frame

Grey = NDArray[np.uint8]
"""A frame without its colours, (height, width)."""
Flow = NDArray[np.float32]
"""Displacement (x, y) in pixels of each pixel, (height, width, 2)."""
Places = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Coordinates x and y in pixels, (height, width) each."""
MIN_SIDE = 12
"""Smallest length of a frame's longer side, in pixels, that DIS accepts."""


def optical_flow(frame: Grey, other: Grey, preset: int = cv2.DISOPTICAL_FLOW_PRESET_MEDIUM) -> Flow:
    """Where each pixel of `frame` is in `other`: frame(p) looks like other(p + flow(p)).

    `preset` is one of OpenCV's `DISOPTICAL_FLOW_PRESET_…`. The result is the same with any number of threads.
    """
    search = cv2.DISOpticalFlow.create(preset)
    return search.calc(frame, other, None)  # type: ignore[call-overload]  # no first guess


def grey(frame: Frame) -> Grey:
    """The frame without its colours."""
    return cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY).astype(np.uint8, copy=False)


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
