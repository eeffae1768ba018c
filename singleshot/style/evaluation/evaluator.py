"""Scores of stylised pictures, compared with their photos and with the painting of their style."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from singleshot.io.images import read_rgb
from singleshot.style.backbones import BackboneName, load_backbone
from singleshot.style.evaluation.metrics import load_lpips, ssim
from singleshot.style.losses import feature_reconstruction_loss
from singleshot.style.perceptual_loss import Grams, LossNetwork, Representation, layer_grams, style_ratio
from singleshot.style.precision import channels_last

JUDGES: tuple[BackboneName, ...] = ("vgg19", "alexnet")
"""Backbones that measure style besides VGG16. A network is trained on VGG16's activations, and a picture by
Gatys et al.'s optimisation is made from those of its own backbone: each looks best to what made it."""


@dataclass(frozen=True)
class PictureScores:
    """The scores of one picture: columns of quality.csv."""

    content_loss: float
    """Mean squared difference between the picture and the photo in VGG16's relu2_2."""
    style_ratio: float
    """Part of the photo's squared distance to the painting's style that is left, in those layers of VGG16
    that networks are trained on. It favours networks, as VGG19 favours pictures of `gatys-vgg19`."""
    style_ratio_vgg19: float
    """Style ratio measured with VGG19, on the layers that Gatys et al.'s optimisation compares."""
    style_ratio_alexnet: float
    """Style ratio measured with AlexNet, on the layers that Gatys et al.'s optimisation compares."""
    ssim: float
    """Structural similarity to the photo."""
    lpips: float
    """LPIPS distance to the photo, measured with AlexNet. The networks were trained on VGG16's activations,
    so VGG16 would favour them."""


@dataclass(frozen=True)
class JudgedPicture:
    """A picture and the backbones' representations of it, which are computed once."""

    pixels: Tensor
    """Pixels (3, H, W), in [0, 1]."""
    representation: Representation
    """Content and style of the picture, as VGG16 represents them."""
    judged: Mapping[BackboneName, Grams]
    """Style of the picture, as each of `JUDGES` represents it."""


class Evaluator:
    """The networks that pictures are measured with, in float32, and the painting.

    From `inputs` it reads `vgg16`, `vgg19`, `alexnet` and `lpips`, files that `fetch_weights` wrote,
    and `painting`, a picture, which it scales to a short side of `size_px`.
    """

    def __init__(self, inputs: Mapping[str, Path], size_px: int, device: str) -> None:
        self.device = device
        self.network = LossNetwork(load_backbone(inputs["vgg16"]).to(device))
        self.judges = {name: channels_last(load_backbone(inputs[name]).to(device)) for name in JUDGES}
        self.lpips = load_lpips(self.judges["alexnet"], inputs["lpips"])
        self.painting = self.represent(read_rgb(inputs["painting"], short_side=size_px))

    @torch.no_grad()
    def represent(self, pixels: Tensor) -> JudgedPicture:
        """The picture with these pixels, (3, H, W) in [0, 1], and its representations."""
        pixels = pixels.to(self.device)
        judged = {name: layer_grams(judge, pixels) for name, judge in self.judges.items()}
        return JudgedPicture(pixels, self.network.represent(pixels[None]), judged)

    def scores(self, x: JudgedPicture, photo: JudgedPicture) -> PictureScores:
        """Scores of a picture that was made from `photo` and has its size."""
        φ_x, φ_photo = x.representation, photo.representation
        return PictureScores(
            float(feature_reconstruction_loss(φ_x.content, φ_photo.content)),
            style_ratio(φ_x.grams, φ_photo.grams, self.painting.representation.grams),
            style_ratio(x.judged["vgg19"], photo.judged["vgg19"], self.painting.judged["vgg19"]),
            style_ratio(x.judged["alexnet"], photo.judged["alexnet"], self.painting.judged["alexnet"]),
            ssim(x.pixels, photo.pixels),
            self.lpips(x.pixels, photo.pixels),
        )
