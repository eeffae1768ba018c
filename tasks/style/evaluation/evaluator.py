"""Stylised pictures measured against their photo and the painting whose style they are to have."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tasks.data.images import read_rgb
from tasks.style.backbones import load_backbone
from tasks.style.evaluation.metrics import load_lpips, ssim
from tasks.style.losses import feature_reconstruction_loss
from tasks.style.perceptual_loss import Grams, LossNetwork, Representation, style_ratio
from tasks.style.precision import channels_last


class Scores(NamedTuple):
    """The scores of one picture: columns of quality.csv."""

    content_loss: float
    style_ratio: float
    ssim: float
    lpips: float


@dataclass(frozen=True)
class Picture:
    """A picture with its representation by VGG16, which is computed once."""

    pixels: Tensor
    """(3, H, W), in [0, 1]."""
    representation: Representation


class Evaluator:
    """The networks that pictures are measured with, in float32, and the painting.

    Of `inputs` it reads `vgg16`, `alexnet` and `lpips`, files that the stage fetch_weights wrote, and
    `painting`, a picture, scaled to a short side of `size_px`.
    """

    def __init__(self, inputs: Mapping[str, Path], size_px: int, device: str) -> None:
        self.device, self.painting_file = device, inputs["painting"]
        self.network = LossNetwork(load_backbone(inputs["vgg16"]).to(device))
        alexnet = channels_last(load_backbone(inputs["alexnet"]).to(device))
        self.lpips = load_lpips(alexnet, inputs["lpips"])
        self.painting = self.painting_grams(size_px)

    @torch.no_grad()
    def represent(self, pixels: Tensor) -> Picture:
        """The picture of pixels (3, H, W) in [0, 1]."""
        pixels = pixels.to(self.device)
        return Picture(pixels, self.network.represent(pixels[None]))

    def painting_grams(self, short_side: int) -> Grams:
        """Gram matrices of the painting at another size."""
        return self.network.grams(read_rgb(self.painting_file, short_side=short_side))

    def scores(self, x: Picture, photo: Picture) -> Scores:
        """Scores of a picture that was made of `photo`, in its size."""
        φ_x, φ_photo = x.representation, photo.representation
        return Scores(
            float(feature_reconstruction_loss(φ_x.content, φ_photo.content)),
            style_ratio(φ_x.grams, φ_photo.grams, self.painting),
            ssim(x.pixels, photo.pixels),
            self.lpips(x.pixels, photo.pixels),
        )
