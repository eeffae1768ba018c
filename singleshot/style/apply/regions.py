"""Where a style goes: inside a mask, and not over faces."""

import base64
import io
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from singleshot.io.images import LUMA, Frame, read_rgb
from singleshot.style.apply.light import bounded
from singleshot.style.apply.stylize import StylizeSettings

if TYPE_CHECKING:
    from skimage.feature import Cascade

MASK_PX = 512
"""Long side of a mask in settings, in pixels; its edges are soft anyway."""
FACES_PX = 480
"""Long side at which faces are looked for, in pixels."""
FACE_PX = 24
"""Smallest side of a face there, that of the detector's own window."""
MARGIN = 1.3
"""How much larger than the detected square the oval is that stays as in the photo."""
FEATHER = 0.2
"""Width of its soft edge, relative to the square's side."""


def read_mask(path: Path, *, invert: bool) -> str:
    """The mask in a picture file, for settings: the style goes where it is white, or black with `invert`.

    Grey is a part of the style. What is transparent counts as black.

    Raises:
        UserError: the file is missing or no picture.
    """
    luma = np.tensordot(np.array(LUMA, np.float32), read_rgb(path, background="black").numpy(), 1)
    height, width = luma.shape
    scale = min(1.0, MASK_PX / max(height, width))
    size = max(1, round(scale * width)), max(1, round(scale * height))
    small = cv2.resize(1 - luma if invert else luma, size, interpolation=cv2.INTER_AREA)
    buffer = io.BytesIO()
    Image.fromarray((small * 255).round().clip(0, 255).astype(np.uint8)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def within(original: Frame, result: Frame, mask: str | None, keep_faces: bool) -> Frame:
    """The result inside the mask (:func:`read_mask`) and outside faces; elsewhere, the original."""
    height, width = original.shape[:2]
    share: NDArray[np.float32] = np.ones((height, width), np.float32)
    if mask:
        content = np.array(Image.open(io.BytesIO(base64.b64decode(mask))), np.float32) / 255
        resized = cv2.resize(content, (width, height), interpolation=cv2.INTER_LINEAR)
        share = resized.astype(np.float32, copy=False)
    if keep_faces:
        share = share * (1 - faces(original))
    if share.min() == 1:
        return result
    return cv2.blendLinear(result, original, share, 1 - share).astype(np.uint8, copy=False)


def placed(pictures: Tensor, results: Tensor, settings: StylizeSettings) -> Iterator[Tensor]:
    """Yield results as they are shown: in the originals' light, where the mask says, and not over faces.

    Pictures and their stylised results are uint8 (N, 3, H, W). See :func:`within` and
    :func:`~singleshot.style.apply.light.bounded`.
    """
    for picture, result in zip(pictures, results, strict=True):
        original, frame = (
            np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()) for pixels in (picture, result)
        )
        own = within(original, bounded(original, frame), settings.mask, settings.keep_faces)
        yield torch.from_numpy(own).permute(2, 0, 1)


def faces(picture: Frame) -> NDArray[np.float32]:
    """Ovals around the faces that look at us (height, width): 1 inside, 0 outside, with soft edges.

    The detector is scikit-image's cascade of local binary patterns (Liao et al. 2007), which comes with it.
    """
    height, width = picture.shape[:2]
    scale = min(1.0, FACES_PX / max(height, width))
    small = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    ovals = np.zeros((height, width), np.float32)
    if min(small.shape[:2]) < FACE_PX:
        return ovals
    found = _detector().detect_multi_scale(
        img=small, scale_factor=1.2, step_ratio=1, min_size=(FACE_PX, FACE_PX), max_size=small.shape[:2]
    )
    for face in found:
        side = face["width"] / scale
        center = round(face["c"] / scale + side / 2), round(face["r"] / scale + side / 2)
        oval = np.zeros_like(ovals)
        axes = round(MARGIN * 0.42 * side), round(MARGIN * 0.5 * side)
        cv2.ellipse(oval, center, axes, 0, 0, 360, 1.0, cv2.FILLED)
        ovals = np.maximum(ovals, cv2.GaussianBlur(oval, (0, 0), max(FEATHER * side / 2, 0.5)))
    return ovals


@cache
def _detector() -> "Cascade":
    # Imported here because it takes a second, which only those wait for who keep faces.
    from skimage.data import lbp_frontal_face_cascade_filename
    from skimage.feature import Cascade

    return Cascade(lbp_frontal_face_cascade_filename())  # type: ignore[no-untyped-call]
