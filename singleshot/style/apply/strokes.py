"""Strokes of a wanted size: a picture is stylised small and brought up again, with the original's edges.

A network draws strokes of a certain number of pixels. In a photo of 12 megapixels they are so small that
nothing but a tint is left. A picture that is stylised at `SIDE_PX` has the strokes of its preview. A guided
filter brings back the photo's fine details (He and Sun 2015, "Fast guided filter"): around each
pixel, the stylised picture is a times the photo's luma plus b, with a and b found in the small picture.
"""

from collections.abc import Callable, Iterator

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from singleshot.io.images import LUMA
from singleshot.style.apply.tiling import to_float
from singleshot.style.transformer_net import MIN_SIDE_PX

SIDE_PX = 768
"""Long side at which pictures are stylised for strokes of size 1, in pixels."""
RADIUS = 4
"""Half the side of the windows in which a is found, in pixels of the small picture."""
NOISE = 0.02**2
"""Variance of the photo's luma, in [0, 1], that counts as noise: where it varies less, a is small."""
MOST_DETAIL = 1.0
"""Largest |a|: the photo's fine detail is never stronger in the result than in the photo."""
BAND_PX = 2**20
"""Number of pixels of the result that are computed at a time."""


def small_size(height: int, width: int, stroke: float | None) -> tuple[int, int]:
    """Height and width at which a picture is stylised for strokes of size `stroke`; never more than its own.

    None stands for strokes of the network's own size, in the whole picture.
    """
    scale = 1.0 if stroke is None else min(1.0, SIDE_PX / stroke / max(height, width))
    return (
        max(min(height, MIN_SIDE_PX), round(scale * height)),
        max(min(width, MIN_SIDE_PX), round(scale * width)),
    )


def scaled_down(pictures: Tensor, size: tuple[int, int]) -> Tensor:
    """Pictures (N, 3, H, W) in [0, 1] or uint8, as means over areas: (N, 3, *size), of the same type."""
    if tuple(pictures.shape[-2:]) == size:
        return pictures
    small = [
        cv2.resize(
            np.ascontiguousarray(picture.permute(1, 2, 0).cpu().numpy()),
            size[::-1],
            interpolation=cv2.INTER_AREA,
        )
        for picture in pictures
    ]
    return torch.from_numpy(np.stack(small)).permute(0, 3, 1, 2).to(pictures.device)


def brought_up(photo: Tensor, small: Tensor, stylized: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield bands of rows of `stylized` at the size of `photo`, each with the position of its first row.

    `photo` is (3, H, W), in [0, 1] or uint8; `small` is the same scaled down, (3, h, w), and `stylized` its
    stylised version in [0, 1]. Bands are (3, rows, W) in [0, 1].
    """
    _, height, width = photo.shape
    _, h, w = small.shape
    model = _local_model(_luma(_pixels(to_float(small))), _pixels(stylized))
    rows = max(1, BAND_PX // width)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        # Centres of pixels are at halves, in both sizes.
        places = np.array(
            [[w / width, 0, (w / width - 1) / 2], [0, h / height, ((top + 0.5) * h / height - 0.5)]]
        )
        a_b = cv2.warpAffine(
            model,
            places,
            (width, bottom - top),
            flags=cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )
        band = a_b[..., 1:] + a_b[..., :1] * _luma(_pixels(to_float(photo[:, top:bottom])))[..., None]
        yield top, torch.from_numpy(band.clip(0, 1)).permute(2, 0, 1)


def with_strokes(photo: Tensor, stroke: float | None, draw: Callable[[Tensor], Tensor]) -> Tensor:
    """A photo (1, 3, H, W), in [0, 1] or uint8, stylised with strokes of a size: (1, 3, H, W) in [0, 1].

    `draw` stylises a picture (1, 3, h, w) in [0, 1], which may be smaller than the photo.
    """
    height, width = photo.shape[-2:]
    small = scaled_down(photo, small_size(height, width, stroke))
    drawn = draw(to_float(small))
    if small is photo:
        return drawn
    return torch.cat([band for _, band in brought_up(photo[0], small[0], drawn[0])], dim=1)[None]


def _local_model(luma: NDArray[np.float32], stylized: NDArray[np.float32]) -> NDArray[np.float32]:
    """a (h, w, 1) and b (h, w, 3), in one array: around each pixel, a · luma + b is the stylised picture.

    a is the slope of the stylised luma over windows; b is exact, so that the small picture is unchanged.
    """
    y = _luma(stylized)

    def mean(values: NDArray[np.float32]) -> NDArray[np.float32]:
        return cv2.blur(values, (2 * RADIUS + 1, 2 * RADIUS + 1)).astype(np.float32, copy=False)

    covariance = mean(luma * y) - mean(luma) * mean(y)
    variance = mean(luma * luma) - mean(luma) ** 2
    a = mean(np.clip(covariance / (variance + NOISE), -MOST_DETAIL, MOST_DETAIL))[..., None]
    return np.concatenate([a, stylized - a * luma[..., None]], axis=-1)


def _luma(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """Luma (H, W) of a picture (H, W, 3)."""
    return pixels @ np.array(LUMA, np.float32)


def _pixels(picture: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(picture.float().cpu().permute(1, 2, 0).numpy())
