"""Training of a network that stylises photos in one pass, by the perceptual loss of Johnson et al. (2016).

The report calls these networks Version 2, and Gatys et al.'s optimisation (`gatys.py`) Version 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn import functional

from tasks.data.images import read_rgb
from tasks.data.randomness import stream
from tasks.style.backbones import load_backbone
from tasks.style.perceptual_loss import LossNetwork, LossWeights, PerceptualLoss
from tasks.style.precision import Precision, autocast, channels_last
from tasks.style.transformer_net import TransformerNet

WARMUP = 20
"""Batches in which the learning rate rises. With this and the cosine, total loss after 300 batches is 14.0 in
place of 15.6 (swirls, width 16)."""
SHIFT_PX = 8
"""Of the temporal loss: the most that a photo is shifted by, to each side."""
SHIFTED_NOISE = 0.02
"""Of the temporal loss: the standard deviation of noise in the shifted photo, of values in [0, 1]."""
BORDER_PX = 8
"""Of the temporal loss: what is left out at the edges, whose pictures depend on what is reflected there."""


@dataclass(frozen=True)
class JohnsonConfig:
    """How a network is trained. Weights are those of eq. 5 and 6 as in losses.py."""

    width: Annotated[int, Ge(1)] = 32
    """Channels of the network's first convolution."""
    image_px: Annotated[int, Ge(32)] = 256
    """Side of the squares it is trained on."""
    style_px: Annotated[int, Ge(32)] = 256
    """Short side of the painting. A larger painting has larger strokes in a stylised photo."""
    batch_size: Annotated[int, Ge(1)] = 4
    """Photos in a batch."""
    epochs: Annotated[int, Ge(1)] = 2
    """Passes over the photos."""
    batches: Annotated[int, Ge(1)] | None = None
    """Length of training in batches; null: `epochs` decide."""
    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Adam's highest learning rate: it rises over the first batches, and falls along half a cosine to the
    end."""
    content_weight: Annotated[float, Ge(0)] = 1.0
    """Weight of the feature reconstruction loss (eq. 5)."""
    style_weight: Annotated[float, Ge(0)] = 20.0
    """Weight of the style reconstruction loss (eq. 6), in units of 1 / ‖G(s)‖ of the painting s."""
    tv_weight: Annotated[float, Ge(0)] = 0.0
    """Weight of the total variation, which the report's loss lacks."""
    temporal_weight: Annotated[float, Ge(0)] = 0.0
    """Weight of the difference that a shift of a photo, and noise in it, make in its stylised picture. With
    it, videos flicker less."""
    augment: bool = False
    """Crop, mirror and tint photos at random, so that a few can serve."""
    precision: Precision = "auto"
    """Arithmetic of convolutions."""
    checkpoint_every: Annotated[int, Ge(1)] = 500
    """Batches between previews, each with a checkpoint; there are others by the clock."""

    @property
    def loss_weights(self) -> LossWeights:
        """Weights of the perceptual loss."""
        return LossWeights(self.content_weight, self.style_weight, self.tv_weight)


@dataclass(frozen=True)
class TrainStyleParams:
    """What one style's network depends on, besides the painting, the photos and the loss network."""

    style: str
    johnson: JohnsonConfig
    seed: int = 0


def initial_network(width: int, seed: int) -> TransformerNet:
    """The network that training begins with, on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return channels_last(TransformerNet(width))


def open_loss(
    inputs: Mapping[str, Path], config: JohnsonConfig, device: str, dtype: torch.dtype
) -> PerceptualLoss:
    """The loss that a network is trained with, of the files `backbone` (VGG16's weights) and `painting`.

    Raises:
        UserError: one of them is missing or damaged.
    """
    network = LossNetwork(load_backbone(inputs["backbone"]).to(device), dtype)
    painting = read_rgb(inputs["painting"], short_side=config.style_px)
    return PerceptualLoss(network, network.grams(painting), config.loss_weights)


class Trainer:
    """A network and Adam, which lowers the perceptual loss of the photos that the network stylises.

    To that loss, `temporal_weight` adds how much a stylised photo differs where the photo is shifted and has
    noise, as from one frame of a video to the next (Wang et al. 2020, "Consistent video style transfer via
    compound regularization", whose shifts are those of single objects too). The learning rate rises over the
    first batches and falls along half a cosine to 0 after `batches`.
    """

    def __init__(
        self,
        network: TransformerNet,
        loss: PerceptualLoss,
        config: JohnsonConfig,
        *,
        batches: int,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        self.network, self.loss, self.config = network, loss, config
        self.batches, self.seed, self.dtype = batches, seed, dtype
        self.device = str(next(network.parameters()).device)
        self.optimizer = torch.optim.Adam(network.parameters(), config.learning_rate)
        self.step = 0
        """Batches the network has been trained on."""

    def update(self, photos: Tensor) -> Tensor:
        """Train on photos (N, 3, S, S): content, style, total variation, temporal and total loss, (5)."""
        self.step += 1
        x = photos.to(self.device, memory_format=torch.channels_last)
        ŷ = self.transform(x)
        content, style, tv, perceptual = self.loss(ŷ, self.loss.network.content(x))
        weight = self.config.temporal_weight
        temporal = self._temporal_loss(x, ŷ) if weight else torch.zeros_like(tv)
        total = perceptual + weight * temporal
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()
        return torch.stack([content, style, tv, temporal, total]).detach()

    def transform(self, photos: Tensor) -> Tensor:
        """Stylised photos (N, 3, H, W), in the arithmetic of training."""
        with autocast(self.device, self.dtype):
            return self.network(photos)

    @torch.no_grad()
    def stylize(self, photo: Tensor) -> Tensor:
        """A photo (3, H, W) on the CPU, stylised."""
        return self.transform(photo[None].to(self.device, memory_format=torch.channels_last))[0].cpu()

    def state_dict(self) -> dict[str, Any]:
        """All that the next updates depend on."""
        return {
            "step": self.step,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        self.step = state["step"]
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _learning_rate(self) -> float:
        """The learning rate of this step, counted from 1."""
        done = (self.step - 1) / self.batches
        return self.config.learning_rate * min(1, self.step / WARMUP) * (1 + math.cos(math.pi * done)) / 2

    def _temporal_loss(self, x: Tensor, ŷ: Tensor) -> Tensor:
        """Mean squared difference of ŷ and the stylised pictures of a shifted window of the photos."""
        generator = stream("temporal", self.seed, self.step, bits=64)
        top, left = torch.randint(SHIFT_PX + 1, (2,), generator=generator).tolist()
        side = x.shape[-1] - SHIFT_PX
        window = (..., slice(top, top + side), slice(left, left + side))
        inside = (..., slice(BORDER_PX, -BORDER_PX), slice(BORDER_PX, -BORDER_PX))
        z = SHIFTED_NOISE * torch.randn(x[window].shape, generator=generator).to(self.device)
        return functional.mse_loss(self.transform(x[window] + z)[inside], ŷ[window][inside])
