"""A camera that moves over a scene, so that the motion between frames is known."""

import cv2
import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.uint8]


def smooth_noise() -> NDArray[np.float32]:
    """120x160: enough detail to follow, none that interpolation would lose."""
    noise = np.random.default_rng(0).uniform(0, 255, (120, 160, 3)).astype(np.float32)
    return cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 3), None, 0, 255, cv2.NORM_MINMAX)


def pan(scene: NDArray[np.float32], frames: int, dx: int, dy: int = 0) -> list[Frame]:
    """A camera that moves over the scene by whole pixels a frame: 64x48."""
    windows = [scene[20 + n * dy : 68 + n * dy, 20 + n * dx : 84 + n * dx] for n in range(frames)]
    return [window.round().astype(np.uint8) for window in windows]
