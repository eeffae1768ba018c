"""Trains a network that a style's training may begin with: `python -m benchmarks.style_start`.

It is trained on many drawn paintings, in one of three ways:

norms    One network learns all paintings. They share its filters, and each has instance norms of its own
         (Dumoulin et al. 2017, "A learned representation for artistic style"). The start has their means.
reptile  The network takes some steps towards one painting, then goes a part of that way, and so on (Nichol et
         al. 2018, "On first-order meta-learning algorithms").
copy     The network learns to copy photos, and no painting.

Photos are those of the stage pictures, which leaves out the ones that styles are measured on; VGG16's weights
come from there too. On CPUs of one kind, the same command makes the same bytes.
`python -m benchmarks.style_begin` compares what styles become of several starts.
"""

import argparse
import functools
import math
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from benchmarks.command import check_inputs, positive, run_main
from pipelines.catalog.paths import BACKBONES, PHOTOS
from pipelines.catalog.styles import trained
from singleshot.style.backbones import load_backbone
from singleshot.style.datasets.drawn_at_random import draw_at_random
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.johnson import initial_network
from singleshot.style.losses import levels, levels_loss
from singleshot.style.perceptual_loss import LossNetwork, LossWeights, PerceptualLoss
from singleshot.style.schedule import LEVELS_WEIGHT, STYLE_WEIGHT, style_factor
from singleshot.style.start import START, START_WIDTH, save_start
from singleshot.style.transformer_net import InstanceNorm, TransformerNet

SIDE_PX, LEARNING_RATE, WARMUP = 128, 0.002, 20
TOWARDS = 8
"""Number of Reptile's steps towards one painting."""


def main() -> None:
    """Train, and write the start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--way", choices=WAYS, default="norms")
    parser.add_argument("--batches", type=positive(int), default=2880)
    parser.add_argument("--batch-size", type=positive(int), default=4, help="number of photos in a batch")
    parser.add_argument("--paintings", type=positive(int), default=36, help="to learn from")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and of the photos' order")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--output", type=Path, default=START)
    options = parser.parse_args()
    check_inputs(BACKBONES, PHOTOS, stages="pictures")
    torch.set_num_threads(1)
    network = initial_network(START_WIDTH, options.seed).to(options.device).train()
    losses = _Losses(options)
    WAYS[options.way](network, losses, tqdm(list(_rates(options.batches)), unit="batch"))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    save_start(network, options.output)
    print(f"{options.output}: {time.process_time() / 60:.1f} minutes of one core")


def _rates(batches: int) -> Iterator[float]:
    """The learning rate of each batch, relative to the highest: it rises, then falls along half a cosine."""
    for step in range(batches):
        yield min(1, (step + 1) / WARMUP) * (1 + math.cos(math.pi * step / batches)) / 2


class _Losses:
    """What the networks are trained with: photos, drawn paintings, and VGG16."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.paintings, self.device = options.paintings, options.device
        self.seed, self.batch_size = options.seed, options.batch_size
        self.vgg16 = LossNetwork(load_backbone(trained("vgg16")).to(self.device), torch.float32)
        self.photos = PhotoSet.open(PHOTOS)
        self.of_painting = functools.cache(self._of_painting)

    def style(self, network: TransformerNet, step: int, painting: int) -> Tensor:
        """The loss of photos in a painting's style, with the levels loss as in learn-style."""
        x = self._photos(step)
        ŷ = network(x)
        perceptual, light = self.of_painting(painting)
        return perceptual(ŷ, self.vgg16.content(x)).total + LEVELS_WEIGHT * levels_loss(ŷ, light)

    def copy(self, network: TransformerNet, step: int) -> Tensor:
        """How far photos' pictures are from the photos, in VGG16's features and in pixels."""
        x = self._photos(step)
        ŷ = network(x)
        pixels = functional.mse_loss(ŷ, x)
        return functional.mse_loss(self.vgg16.represent(ŷ).content, self.vgg16.content(x)) + 100 * pixels

    def _photos(self, step: int) -> Tensor:
        batch = self.photos.batch(self.seed, step, self.batch_size, SIDE_PX, augment=True)
        return batch.to(self.device, memory_format=torch.channels_last)

    @torch.no_grad()
    def _of_painting(self, painting: int) -> tuple[PerceptualLoss, Tensor]:
        """The loss of a drawn painting, with a style weight as in learn-style, and the painting's levels."""
        size = int(np.random.default_rng(painting).integers(204, 360))
        picture = draw_at_random(painting, size)
        loss = PerceptualLoss(self.vgg16, self.vgg16.grams(picture), LossWeights(1, STYLE_WEIGHT, 0))
        loss.style_weight *= style_factor(loss, self.photos, self.device)
        return loss, levels(picture[None]).to(self.device)


def _norms(network: TransformerNet, losses: _Losses, rates: Collection[float]) -> None:
    norms = [module for module in network.modules() if isinstance(module, InstanceNorm)]
    filters = [p for m in network.modules() if isinstance(m, nn.Conv2d) for p in m.parameters()]
    initial = [p.detach() for norm in norms for p in (norm.weight, norm.bias)]
    own = [[nn.Parameter(p.clone()) for p in initial] for _ in range(losses.paintings)]
    optimizer = torch.optim.Adam([*filters, *(p for each in own for p in each)])
    for step, rate in enumerate(rates):
        painting = step % losses.paintings
        _put(norms, own[painting])
        _update(optimizer, losses.style(network, step, painting), rate)
    _put(norms, [nn.Parameter(torch.stack(copies).mean(dim=0)) for copies in zip(*own, strict=True)])


def _reptile(network: TransformerNet, losses: _Losses, rates: Collection[float]) -> None:
    weights = list(network.parameters())
    optimizer = torch.optim.Adam(weights, betas=(0.0, 0.999))
    start = [weight.detach().clone() for weight in weights]
    for step, rate in enumerate(rates):
        _update(optimizer, losses.style(network, step, step // TOWARDS % losses.paintings), 1)
        if (step + 1) % TOWARDS == 0 or step + 1 == len(rates):
            with torch.no_grad():
                for weight, before in zip(weights, start, strict=True):
                    weight.copy_(before.lerp_(weight, rate))


def _copy(network: TransformerNet, losses: _Losses, rates: Collection[float]) -> None:
    optimizer = torch.optim.Adam(network.parameters())
    for step, rate in enumerate(rates):
        _update(optimizer, losses.copy(network, step), rate)


WAYS = {"norms": _norms, "reptile": _reptile, "copy": _copy}


def _update(optimizer: torch.optim.Adam, loss: Tensor, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE * rate
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _put(norms: list[InstanceNorm], parameters: list[nn.Parameter]) -> None:
    """Let the norms use these scales and shifts, in turn."""
    for norm, weight, bias in zip(norms, parameters[::2], parameters[1::2], strict=True):
        norm.weight, norm.bias = weight, bias


if __name__ == "__main__":
    run_main(main)
