"""The perceptual loss of Johnson et al. (2016), and the style ratio, a score computed from its style term.

Style networks are trained with this loss, and evaluated with its terms. Equations are numbered as in the
report.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from singleshot.style.backbones import STYLE_LAYERS as LAYERS
from singleshot.style.backbones import Backbone
from singleshot.style.losses import (
    feature_reconstruction_loss,
    normalized_gram,
    style_reconstruction_loss,
    total_variation,
)
from singleshot.style.precision import autocast, channels_last

CONTENT_LAYER = "relu2_2"
STYLE_LAYERS = ("relu1_2", "relu2_2", "relu3_3", "relu4_3")
"""Layers of VGG16 whose activations are compared."""

Grams = Mapping[str, Tensor]
"""Gram matrices of pictures, divided by C·H·W, for each of the style layers: (N, C, C)."""


@dataclass(frozen=True)
class Representation:
    """Content and style of pictures, as VGG16 represents them."""

    content: Tensor
    """φ, the activations of the content layer: (N, C, H/2, W/2)."""
    grams: Grams


class LossNetwork:
    """VGG16 with torchvision's weights and max pooling; it represents content and style of pictures.

    Pictures are RGB in [0, 1], (N, 3, H, W), on VGG16's device. Convolutions run in `dtype`; activations and
    Gram matrices are in float32, because sums over them would lose precision otherwise.
    """

    def __init__(self, vgg16: Backbone, dtype: torch.dtype = torch.float32) -> None:
        self.vgg16, self.dtype = channels_last(vgg16.in_precision(dtype)), dtype

    def represent(self, pictures: Tensor) -> Representation:
        """Content and style of pictures, differentiable with respect to their pixels."""
        φ = self._activations(pictures, {CONTENT_LAYER, *STYLE_LAYERS})
        return Representation(φ[CONTENT_LAYER], _grams(φ))

    @torch.no_grad()
    def content(self, pictures: Tensor) -> Tensor:
        """φ of photos, the target of eq. 5. VGG16 runs no further than the content layer."""
        return self._activations(pictures, {CONTENT_LAYER})[CONTENT_LAYER]

    @torch.no_grad()
    def grams(self, picture: Tensor) -> Grams:
        """Gram matrices of a picture (3, H, W), such as the painting, on any device: the target of eq. 6."""
        pictures = picture[None].to(self.vgg16.mean.device, memory_format=torch.channels_last)
        return _grams(self._activations(pictures, STYLE_LAYERS))

    def _activations(self, pictures: Tensor, layers: Collection[str]) -> dict[str, Tensor]:
        with autocast(str(pictures.device), self.dtype):
            activations = self.vgg16(pictures, layers)
        return {layer: activation.float() for layer, activation in activations.items()}


@dataclass(frozen=True)
class LossWeights:
    """Factors of the terms of the perceptual loss."""

    content: float
    style: float
    """Factor of the style term, in units of 1 / ‖G(s)‖ of the painting s (:class:`PerceptualLoss`)."""
    tv: float


class Terms(NamedTuple):
    """The perceptual loss and its unweighted terms: scalars, averaged over pictures."""

    content: Tensor
    """Feature reconstruction loss (eq. 5)."""
    style: Tensor
    """Style reconstruction loss (eq. 6), summed over the style layers."""
    tv: Tensor
    total: Tensor
    """Weighted sum of the three terms."""


class PerceptualLoss:
    """How far stylised photos are from the photos' content and from a painting's style.

    λ_c · eq. 5 + λ_s · Σ eq. 6 / ‖G(s)‖ + λ_TV · total variation. The total variation is a term of Johnson et
    al.'s that the report leaves out, as a weight of 0 does.
    """

    def __init__(self, network: LossNetwork, painting: Grams, weights: LossWeights) -> None:
        self.network, self.painting, self.weights = network, painting, weights
        self.style_weight = weights.style / sum(float(G.square().sum()) for G in painting.values()) ** 0.5
        """λ_s / ‖G(s)‖, with ‖G(s)‖² summed over the layers.

        Gradients of eq. 6 grow in proportion to ‖G(s)‖. Thanks to the division, one weight serves paintings
        whose ‖G(s)‖ is 3.4 (Hokusai's wave at 256 px), 7.3 (the swirls that this project draws) or 34 (its
        mosaic). The weights of pytorch/examples, 1e5 for content and 1e10 for style (with means over Gram
        matrices), are 1 and 14 to 34 in these units.
        """

    def __call__(self, ŷ: Tensor, content: Tensor) -> Terms:
        """The loss of stylised photos ŷ (N, 3, H, W), given :meth:`LossNetwork.content` of the photos."""
        λ, φ_ŷ = self.weights, self.network.represent(ŷ)
        L_content = feature_reconstruction_loss(φ_ŷ.content, content)
        L_style = style_loss(φ_ŷ.grams, self.painting)
        tv = total_variation(ŷ)
        total = λ.content * L_content + self.style_weight * L_style + λ.tv * tv
        return Terms(L_content, L_style, tv, total)


def style_loss(grams: Grams, painting: Grams) -> Tensor:
    """Σ_l ‖G_l(ŷ) - G_l(s)‖² (eq. 6, summed over the style layers), averaged over pictures; a scalar."""
    return torch.stack([style_reconstruction_loss(grams[layer], G) for layer, G in painting.items()]).sum()


def style_ratio(stylized: Grams, photo: Grams, painting: Grams) -> float:
    """Σ_l ‖G_l(ŷ) - G_l(s)‖² / Σ_l ‖G_l(x) - G_l(s)‖²: 1 for the photo itself, 0 for the painting.

    It is the ratio of two squared distances to the style of the painting s: that of the stylised picture ŷ to
    that of its photo x.
    """
    return float(style_loss(stylized, painting) / style_loss(photo, painting))


def _grams(activations: Mapping[str, Tensor]) -> Grams:
    return {layer: normalized_gram(activations[layer]) for layer in STYLE_LAYERS}


def layer_grams(backbone: Backbone, picture: Tensor) -> Grams:
    """Gram matrices of a picture (3, H, W) in the layers that Gatys et al.'s optimisation compares."""
    activations = backbone(picture[None], LAYERS[backbone.architecture])
    return {layer: normalized_gram(activation) for layer, activation in activations.items()}
