"""Pictures measured against the photo they were made of and the painting whose style they are to have."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tasks.data.images import read_rgb
from tasks.style.backbones import Backbone, load_backbone
from tasks.style.evaluation.metrics import (
    Representation,
    content_loss,
    load_lpips,
    represent,
    ssim,
    style_ratio,
)
from tasks.style.precision import channels_last


class Scores(NamedTuple):
    """Of one picture, as quality.csv has them."""

    content_loss: float
    style_ratio: float
    ssim: float
    lpips: float


@dataclass(frozen=True)
class Seen:
    """A picture (3, H, W) and what VGG16 sees in it."""

    picture: Tensor
    features: Representation


class Judge:
    """The networks that pictures are measured with, in float32, and the painting.

    Of `inputs` it takes `vgg16`, `alexnet` and `lpips`, files that the stage fetch_weights wrote, and
    `painting`, a picture, which it sees at `size_px`, its short side.
    """

    def __init__(self, inputs: Mapping[str, Path], size_px: int, device: str) -> None:
        self.device, self.painting_file = device, inputs["painting"]
        self.vgg16 = self._backbone(inputs["vgg16"])
        self.lpips = load_lpips(self._backbone(inputs["alexnet"]), inputs["lpips"])
        self.painting = self.see_painting(size_px)

    def _backbone(self, path: Path) -> Backbone:
        return channels_last(load_backbone(path).to(self.device))

    @torch.no_grad()
    def see(self, picture: Tensor) -> Seen:
        """A picture (3, H, W) in [0, 1]."""
        picture = picture.to(self.device)
        return Seen(picture, represent(self.vgg16, picture))

    def see_painting(self, short_side: int) -> Representation:
        """The painting at another size."""
        return self.see(read_rgb(self.painting_file, short_side=short_side)).features

    def scores(self, x: Seen, photo: Seen) -> Scores:
        """Of a picture made of `photo`, in its size."""
        return Scores(
            float(content_loss(x.features, photo.features)),
            style_ratio(x.features, photo.features, self.painting),
            ssim(x.picture, photo.picture),
            self.lpips(x.picture, photo.picture),
        )
