"""Where a style goes: inside a mask, and not over faces."""

import base64
import io
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from singleshot.io.images import Frame, luma, read_rgb
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
NEIGHBOURS = 6
"""Windows that have to agree on a face. In 84 photos and paintings (scikit-image's, scikit-learn's and
Matplotlib's, 36 of COCO), 4 windows find 41 squares, most of them in walls, doors and leaves; 6 that see
a face in the mirror, too, find seven, all of them faces that look at us."""
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
    grey = luma(read_rgb(path, background="black"))[0].numpy()
    height, width = grey.shape
    scale = min(1.0, MASK_PX / max(height, width))
    size = max(1, round(scale * width)), max(1, round(scale * height))
    small = cv2.resize(1 - grey if invert else grey, size, interpolation=cv2.INTER_AREA)
    buffer = io.BytesIO()
    Image.fromarray((small * 255).round().clip(0, 255).astype(np.uint8)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


Face = tuple[int, int, int]
"""A square in pixels: left, top and side."""


def within(original: Frame, result: Frame, mask: str | None, faces: Sequence[Face]) -> Frame:
    """The result inside the mask (:func:`read_mask`) and outside faces; elsewhere, the original."""
    height, width = original.shape[:2]
    share: NDArray[np.float32] = np.ones((height, width), np.float32)
    if mask:
        content = np.array(Image.open(io.BytesIO(base64.b64decode(mask))), np.float32) / 255
        resized = cv2.resize(content, (width, height), interpolation=cv2.INTER_LINEAR)
        share = resized.astype(np.float32, copy=False)
    for left, top, side in faces:
        oval = np.zeros_like(share)
        axes = round(MARGIN * 0.42 * side), round(MARGIN * 0.5 * side)
        cv2.ellipse(oval, (left + side // 2, top + side // 2), axes, 0, 0, 360, 1.0, cv2.FILLED)
        share = np.minimum(share, 1 - cv2.GaussianBlur(oval, (0, 0), max(FEATHER * side / 2, 0.5)))
    if share.min() == 1:
        return result
    return cv2.blendLinear(result, original, share, 1 - share).astype(np.uint8, copy=False)


def placed(
    pictures: Tensor, results: Tensor, settings: StylizeSettings, name: str | None = None
) -> Iterator[Tensor]:
    """Yield results as they are shown: in the originals' light, where the mask says, and not over faces.

    Pictures and their stylised results are uint8 (N, 3, H, W). See :func:`within` and
    :func:`~singleshot.style.apply.light.bounded`. With a `name`, standard error has the number of faces kept.
    """
    for picture, result in zip(pictures, results, strict=True):
        original, frame = (
            np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()) for pixels in (picture, result)
        )
        faces = find_faces(original) if settings.keep_faces else []
        if name and settings.keep_faces:
            tqdm.write(f"{name}: {len(faces)} face{'s' * (len(faces) != 1)} kept", file=sys.stderr)
        own = within(original, bounded(original, frame), settings.mask, faces)
        yield torch.from_numpy(own).permute(2, 0, 1)


def find_faces(picture: Frame) -> list[Face]:
    """The faces that look at us and are seen in the mirror, too.

    The detector is scikit-image's cascade of local binary patterns (Liao et al. 2007), which comes with it.
    """
    scale = min(1.0, FACES_PX / max(picture.shape[:2]))
    small = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA).astype(np.uint8)
    found, width = _detected(small), small.shape[1]
    in_mirror = _detected(np.ascontiguousarray(small[:, ::-1])) if found else []
    seen = [(width - left - side, top, side) for left, top, side in in_mirror]
    sure = [
        face for face in found if any(np.abs(np.subtract(face, other)).max() < face[2] / 3 for other in seen)
    ]
    return [(round(left / scale), round(top / scale), round(side / scale)) for left, top, side in sure]


def _detected(picture: Frame) -> list[Face]:
    if min(picture.shape[:2]) < FACE_PX:
        return []
    found = _detector().detect_multi_scale(
        img=picture,
        scale_factor=1.2,
        step_ratio=1,
        min_size=(FACE_PX, FACE_PX),
        max_size=picture.shape[:2],
        min_neighbor_number=NEIGHBOURS,
    )
    return [(face["c"], face["r"], face["width"]) for face in found]


@cache
def _detector() -> "Cascade":
    # Imported here because it takes a second, which only those wait for who keep faces.
    from skimage.data import lbp_frontal_face_cascade_filename
    from skimage.feature import Cascade

    return Cascade(lbp_frontal_face_cascade_filename())  # type: ignore[no-untyped-call]
