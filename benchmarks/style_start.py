"""Trains the network that `learn-style` begins with: `python -m benchmarks.style_start --minutes 45`.

One network learns many drawn paintings at once. They share its filters, and each has instance norms of its
own (Dumoulin et al. 2017, "A learned representation for artistic style"). Their mean is the start: what
styles have in common, none of them in particular. The photos are those of packages; nothing else is needed
but VGG16's weights, from the stage pictures.
"""

import argparse
import functools
import io
import math
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.command import check_inputs, positive, run_main
from pipelines.catalog.paths import BACKBONES
from pipelines.catalog.styles import trained
from singleshot.io.images import read_rgb
from singleshot.random_streams import stream
from singleshot.style.backbones import load_backbone
from singleshot.style.datasets.drawn_at_random import draw_at_random
from singleshot.style.datasets.photos import random_crop
from singleshot.style.johnson import initial_network
from singleshot.style.perceptual_loss import LossNetwork, LossWeights, PerceptualLoss, style_loss
from singleshot.style.precision import autocast, resolve
from singleshot.style.schedule import STRONGEST_STYLE, STYLE_WEIGHT
from singleshot.style.start import START, save_start
from singleshot.style.transformer_net import InstanceNorm, TransformerNet

WIDTH, SIDE_PX, PAINTINGS, LEARNING_RATE, WARMUP = 16, 128, 36, 0.002, 20
PHOTOS: Mapping[str, tuple[str, ...]] = {
    "scikit-image": tuple(
        f"skimage/data/{name}"
        for name in (
            *("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png"),
            *("hubble_deep_field.jpg", "camera.png", "gravel.png", "brick.png", "grass.png", "coins.png"),
        )
    ),
    "scikit-learn": ("sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg"),
    "matplotlib": ("matplotlib/mpl-data/sample_data/grace_hopper.jpg",),
}
"""Photos by the packages that they come with."""


def main() -> None:
    """Train, and write the start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=positive(float), default=45)
    parser.add_argument("--output", type=Path, default=START)
    options = parser.parse_args()
    check_inputs(BACKBONES, stages="pictures")
    torch.set_num_threads(1)
    network, batches = _train(60 * options.minutes)
    save_start(network, options.output)
    print(f"{options.output}: {batches:,} batches in {time.process_time() / 60:.1f} minutes of one core")


def _train(seconds: float) -> tuple[TransformerNet, int]:
    """The start, and the number of batches that it was trained for."""
    dtype = resolve("auto", "cpu")
    vgg16 = LossNetwork(load_backbone(trained("vgg16")), dtype)
    photos = list(_photos())
    network = initial_network(WIDTH, seed=0).train()
    norms = [module for module in network.modules() if isinstance(module, InstanceNorm)]
    filters = [p for m in network.modules() if isinstance(m, nn.Conv2d) for p in m.parameters()]
    initial = [p.detach() for norm in norms for p in (norm.weight, norm.bias)]
    own = [[nn.Parameter(p.clone()) for p in initial] for _ in range(PAINTINGS)]
    optimizer = torch.optim.Adam([*filters, *(p for each in own for p in each)], LEARNING_RATE)

    @functools.cache
    def loss_of(painting: int) -> PerceptualLoss:
        return _loss(vgg16, painting, torch.stack([_crop(photos, i) for i in range(4)]))

    begun, step = time.monotonic(), 0
    while (done := (time.monotonic() - begun) / seconds) < 1:
        painting = step % PAINTINGS
        _put(norms, own[painting])
        x = _crop(photos, step)[None].contiguous(memory_format=torch.channels_last)
        with autocast("cpu", dtype):
            ŷ = network(x)
        total = loss_of(painting)(ŷ, vgg16.content(x)).total
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1, (step + 1) / WARMUP) * (1 + math.cos(math.pi * done)) / 2
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        step += 1
    _put(norms, [nn.Parameter(torch.stack(copies).mean(dim=0)) for copies in zip(*own, strict=True)])
    return network, step


def _photos() -> Iterator[Tensor]:
    for package, paths in PHOTOS.items():
        for path in paths:
            content = Path(str(distribution(package).locate_file(path))).read_bytes()
            yield read_rgb(io.BytesIO(content), short_side=512, enlarge=False)


def _crop(photos: list[Tensor], step: int) -> Tensor:
    generator = stream("start", step, bits=64)
    return random_crop(photos[int(torch.randint(len(photos), (), generator=generator))], SIDE_PX, generator)


def _loss(network: LossNetwork, painting: int, photos: Tensor) -> PerceptualLoss:
    """The loss of a drawn painting, with a style weight as in learn-style."""
    size = int(np.random.default_rng(painting).integers(204, 360))
    grams = network.grams(draw_at_random(painting, size))
    loss = PerceptualLoss(network, grams, LossWeights(1, STYLE_WEIGHT, 0))
    with torch.no_grad():
        begins = loss.style_weight * float(style_loss(network.represent(photos).grams, loss.painting))
    loss.style_weight *= min(1, STRONGEST_STYLE / begins)
    return loss


def _put(norms: list[InstanceNorm], parameters: list[nn.Parameter]) -> None:
    """Let the norms use these scales and shifts, in turn."""
    for norm, weight, bias in zip(norms, parameters[::2], parameters[1::2], strict=True):
        norm.weight, norm.bias = weight, bias


if __name__ == "__main__":
    run_main(main)
