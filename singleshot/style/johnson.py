"""Training of a network that stylises photos in one pass, with the perceptual loss of Johnson et al. (2016).

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

from singleshot.io.images import read_rgb
from singleshot.random_streams import stream
from singleshot.style.backbones import load_backbone
from singleshot.style.losses import levels_loss
from singleshot.style.perceptual_loss import LossNetwork, LossWeights, PerceptualLoss
from singleshot.style.precision import Precision, autocast, channels_last
from singleshot.style.start import started_network, widened
from singleshot.style.transformer_net import TransformerNet

WARMUP = 20
"""Number of batches at the start in which the learning rate rises. With this warm-up and the cosine decay,
total loss after 300 batches is 14.0 instead of 15.6 (swirls, width 16)."""
SHIFT_PX = 8
"""Largest shift of a photo in the temporal loss, in pixels, down or to the right."""
SHIFTED_NOISE = 0.02
"""Standard deviation of the noise in the shifted photo of the temporal loss, for values in [0, 1]."""
BORDER_PX = 8
"""Width of the border that the temporal loss leaves out, in pixels. There, a stylised picture depends on the
padding by reflection."""


@dataclass(frozen=True)
class JohnsonConfig:
    """Settings with which a network is trained. Equations 5 and 6 are those of Shen and Wang's report."""

    width: Annotated[int, Ge(1)] = 32
    """Number of channels of the network's first convolution."""
    image_px: Annotated[int, Ge(32)] = 256
    """Side of the square crops that the network is trained on, in pixels."""
    style_px: Annotated[int, Ge(32)] = 256
    """Short side of the painting, in pixels. A larger painting has larger strokes in a stylised photo."""
    batch_size: Annotated[int, Ge(1)] = 4
    """Batch size, in photos."""
    epochs: Annotated[int, Ge(1)] = 2
    """Number of passes over the photos."""
    batches: Annotated[int, Ge(1)] | None = None
    """Length of the training, in batches; if null, `epochs` decides."""
    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Highest learning rate of Adam. The learning rate rises over the first batches, then falls along half a
    cosine until the end."""
    content_weight: Annotated[float, Ge(0)] = 1.0
    """Weight of the feature reconstruction loss (eq. 5)."""
    style_weight: Annotated[float, Ge(0)] = 20.0
    """Weight of the style reconstruction loss (eq. 6), in units of 1 / ‖G(s)‖ of the painting s."""
    tv_weight: Annotated[float, Ge(0)] = 0.0
    """Weight of the total variation, which the report's loss lacks."""
    temporal_weight: Annotated[float, Ge(0)] = 0.0
    """Weight of the temporal loss: the difference that a shift of a photo, and noise in it, make in its
    stylised picture. With this loss, videos flicker less."""
    levels_weight: Annotated[float, Ge(0)] = 0.0
    """Weight of the levels loss: how far light, darks and saturation are from the painting's. The report's
    loss lacks it."""
    augment: bool = False
    """Whether to crop, mirror and tint photos at random, so that a few photos suffice."""
    precision: Precision = "auto"
    """Arithmetic of the convolutions."""
    checkpoint_every: Annotated[int, Ge(1)] = 500
    """Interval between previews, in batches. Each preview comes with a checkpoint; further checkpoints depend
    on the time since the last one."""

    @property
    def loss_weights(self) -> LossWeights:
        """Weights of the perceptual loss."""
        return LossWeights(self.content_weight, self.style_weight, self.tv_weight)


@dataclass(frozen=True)
class TrainStyleParams:
    """Parameters that a style's network depends on, besides painting, photos and loss network."""

    style: str
    johnson: JohnsonConfig
    seed: int = 0
    seconds: float | None = None
    """Time to train for. Size and number of batches then follow the machine's load, from `johnson` on
    (:mod:`singleshot.style.schedule`)."""
    unseen: tuple[str, ...] = ()
    """Names of photos that the network is judged on, not trained."""


def initial_network(width: int, seed: int, start: Path | None = None) -> TransformerNet:
    """The network that training begins with, on the CPU: random, or that of the file `start` if it fits."""
    if start and (network := started_network(start, width, seed)):
        return network
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return channels_last(TransformerNet(width))


def open_loss(
    inputs: Mapping[str, Path], config: JohnsonConfig, device: str, dtype: torch.dtype
) -> PerceptualLoss:
    """The loss that a network is trained with, from the files `backbone` (VGG16's weights) and `painting`.

    Raises:
        UserError: one of these files is missing or damaged.
    """
    network = LossNetwork(load_backbone(inputs["backbone"]).to(device), dtype)
    painting = read_rgb(inputs["painting"], short_side=config.style_px)
    return PerceptualLoss(network, network.grams(painting), config.loss_weights)


class Trainer:
    """A network, and the Adam optimiser that trains it to lower the perceptual loss of stylised photos.

    `temporal_weight` is the weight of an additional loss: how much a stylised photo changes when the photo is
    shifted and gets noise, as from one frame of a video to the next (Wang et al. 2020, "Consistent video
    style transfer via compound regularization", who shift single objects too). `levels_weight` is that of
    :func:`~singleshot.style.losses.levels_loss`, to `levels` of the painting. The learning rate rises over
    the first batches and falls along half a cosine, to 0 at the end.
    """

    def __init__(
        self,
        network: TransformerNet,
        loss: PerceptualLoss,
        config: JohnsonConfig,
        *,
        levels: Tensor,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        self.network, self.loss = network, loss
        self.config = config
        """Settings, which may be changed while training lasts, except `width` (see :meth:`widen`)."""
        self.seed, self.dtype = seed, dtype
        self.device = str(next(network.parameters()).device)
        self.levels = levels.to(self.device)
        self.optimizer = torch.optim.Adam(network.parameters())
        self.step = 0
        """Number of batches that the network has been trained on."""

    def widen(self, width: int) -> None:
        """Go on with a network of `width` channels that computes the same. Adam's moments begin anew."""
        self.network = widened(self.network, width, self.seed).to(self.device)
        self.optimizer = torch.optim.Adam(self.network.parameters())

    def update(self, photos: Tensor, done: float) -> Tensor:
        """Train on photos (N, 3, S, S); return content, style, TV, temporal, levels, total loss: (6).

        `done` is the part of the training that is over, from 0 to 1, on which the learning rate depends.
        """
        self.step += 1
        x = photos.to(self.device, memory_format=torch.channels_last)
        ŷ = self.transform(x)
        content, style, tv, perceptual = self.loss(ŷ, self.loss.network.content(x))
        weight = self.config.temporal_weight
        temporal = self._temporal_loss(x, ŷ) if weight else torch.zeros_like(tv)
        light = levels_loss(ŷ, self.levels) if self.config.levels_weight else torch.zeros_like(tv)
        total = perceptual + weight * temporal + self.config.levels_weight * light
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate(done)
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()
        return torch.stack([content, style, tv, temporal, light, total]).detach()

    def transform(self, photos: Tensor) -> Tensor:
        """Stylised photos (N, 3, H, W), in the arithmetic of training."""
        with autocast(self.device, self.dtype):
            return self.network(photos)

    @torch.no_grad()
    def stylize(self, photo: Tensor) -> Tensor:
        """A photo (3, H, W) on the CPU, stylised."""
        return self.transform(photo[None].to(self.device, memory_format=torch.channels_last))[0].cpu()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next updates depend on."""
        return {
            "step": self.step,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that :meth:`state_dict` returned."""
        self.step = state["step"]
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _learning_rate(self, done: float) -> float:
        """The learning rate of this step, counted from 1."""
        return self.config.learning_rate * min(1, self.step / WARMUP) * (1 + math.cos(math.pi * done)) / 2

    def _temporal_loss(self, x: Tensor, ŷ: Tensor) -> Tensor:
        """Mean squared difference between ŷ and the pictures of a shifted, noisy part of the photos."""
        generator = stream("temporal", self.seed, self.step, bits=64)
        top, left = torch.randint(SHIFT_PX + 1, (2,), generator=generator).tolist()
        side = x.shape[-1] - SHIFT_PX
        window = (..., slice(top, top + side), slice(left, left + side))
        inside = (..., slice(BORDER_PX, -BORDER_PX), slice(BORDER_PX, -BORDER_PX))
        z = SHIFTED_NOISE * torch.randn(x[window].shape, generator=generator).to(self.device)
        return functional.mse_loss(self.transform(x[window] + z)[inside], ŷ[window][inside])
