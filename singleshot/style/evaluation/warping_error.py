"""Warping error of a stylised video: how much it flickers along the original's motion (Lai et al. 2018)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, zip_longest

import numpy as np
from numpy.typing import NDArray

from singleshot.errors import UserError
from singleshot.io.images import Frame
from singleshot.style.apply.light import grey
from singleshot.style.video.smoothing import MIN_SIDE, Flow, optical_flow, targets, warp


@dataclass(frozen=True)
class WarpingError:
    """Mean warping errors over pairs of consecutive frames, for colours in [0, 1]."""

    original: float
    stylized: float

    @property
    def relative(self) -> float:
        """Stylised over original error; infinite, or NaN for 0/0, if the original has no error at all."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.divide(self.stylized, self.original))


def warping_error(original: Iterable[Frame], stylized: Iterable[Frame]) -> WarpingError:
    """E_warp = mean over t of Σ M_t ‖O_t - warp(O_{t+1}, F_{t→t+1})‖² / Σ M_t (Lai et al. 2018).

    F is the optical flow between the *original's* frames, and is used for both videos. It comes from dense
    inverse search, instead of the paper's FlowNet 2. ‖·‖² sums over the three colours. M leaves out pixels
    that are occluded or at edges of motion (:func:`visible`). Two frames of each video are in memory at a
    time. A pair of frames without a pixel to compare isn't counted.

    Raises:
        UserError: the videos differ in size or in number of frames, or no pair can be compared.
    """
    errors = []
    for (i, o), (next_i, next_o) in pairwise(_together(original, stylized)):
        now, following = grey(i), grey(next_i)
        flow = optical_flow(now, following)
        M = visible(flow, optical_flow(following, now))
        if M.any():
            errors.append((_error(i, next_i, flow, M), _error(o, next_o, flow, M)))
    if not errors:
        raise UserError("no two frames in a row show the same scene; give a video with fewer cuts")
    return WarpingError(*np.mean(errors, axis=0).tolist())


def visible(forward: Flow, backward: Flow) -> NDArray[np.bool_]:
    """Pixels (height, width) that the next frame shows too, and that aren't at an edge of motion.

    Let w = (u, v) be a pixel's forward flow and ŵ the backward flow at the place that w leads to. The pixel
    is occluded if |w + ŵ|² > 0.01 (|w|² + |ŵ|²) + 0.5, and at an edge if |∇u|² + |∇v|² > 0.01 |w|² + 0.002
    (Sundaram et al. 2010, which Ruder et al. 2016 and Lai et al. 2018 use). A pixel that leaves the picture
    isn't visible either.
    """
    x, y = places = targets(forward)
    w, ŵ = forward, warp(backward, places)
    occluded = _square(w + ŵ) > 0.01 * (_square(w) + _square(ŵ)) + 0.5
    gradients = np.concatenate(np.gradient(w, axis=(0, 1)), axis=-1)
    at_edge = _square(gradients) > 0.01 * _square(w) + 0.002
    height, width = w.shape[:2]
    inside = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
    return inside & ~occluded & ~at_edge


def _together(original: Iterable[Frame], stylized: Iterable[Frame]) -> Iterator[tuple[Frame, Frame]]:
    for n, (i, o) in enumerate(zip_longest(original, stylized)):
        if i is None or o is None:
            shorter = "original" if i is None else "stylised"
            raise UserError(f"the {shorter} video ends after {n} frames, the other goes on; stylise it again")
        if i.shape != o.shape:
            raise UserError(f"frame {n} has shape {i.shape}, its stylised one {o.shape}; stylise it again")
        if max(i.shape[:2]) < MIN_SIDE:
            raise UserError(f"frames of shape {i.shape} are too small for optical flow; give larger ones")
        yield i, o


def _error(frame: Frame, following: Frame, flow: Flow, M: NDArray[np.bool_]) -> float:
    """Mean over visible pixels of the squared difference of colours in [0, 1], summed over the colours."""
    difference = frame.astype(np.float32) - warp(following.astype(np.float32), targets(flow))
    return float(_square(difference)[M].mean(dtype=np.float64)) / 255**2


def _square(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.square(vectors).sum(axis=-1)
