"""A training in a given time, whose size and length follow the machine's load while it lasts.

The larger the pictures, the fewer the batches. Training begins with the smallest size, for any other could be
too large; what it takes says which size the rest of the time allows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.johnson import JohnsonConfig, open_loss
from singleshot.style.perceptual_loss import style_loss

ENOUGH_BATCHES = 1000
"""Number of batches that a size must have time for in order to be chosen. With fewer batches, a smaller size
comes nearer to the painting. The same holds for the batch size: in the same time, 150 batches of four photos
leave a style ratio of 0.45 and 600 batches of one photo leave 0.35 (swirls, 128 px); 500 batches of four
leave 0.22 and 2,000 of one leave 0.19."""
MARGIN = 1.25
"""Number of times `ENOUGH_BATCHES` that there has to be time for so that training goes to a larger size. It
goes to a smaller one where there is no longer time for `ENOUGH_BATCHES` / `MARGIN`."""
GROWS_UNTIL = 0.25
"""Part of the time in which training may go to a larger size, if there is time for so many batches."""
LARGER_FROM = 0.5
"""Part of the time after which pictures have the next larger side, since the photos to stylise are larger
still. In the time of 400 batches of 128 px, 200 of them and then 89 of 192 px leave a style ratio by VGG19 of
0.34 instead of 0.39 (a starry night) and 0.55 instead of 0.59 (a wave)."""
LARGER_BATCHES = 200
"""Number of batches below which pictures stay as they are: so few leave a style faint in any case, and larger
ones would be fewer still."""
MOST_BATCHES = 60_000
"""Upper bound of the number of batches: two epochs of COCO in batches of 4, as in the paper."""
FAST_BATCHES = 3000
"""Number of batches up to which the learning rate is `FAST`, three times the paper's: few batches need longer
steps. After 2,000 batches, `FAST` and `SLOW` both leave a style ratio of 0.19, and with `FAST` the clip
flickers 0.7 times as much."""
FAST, SLOW = 0.003, 0.001
STYLE_WEIGHT = 8.0
"""Weight of the style loss, in units of 1 / ‖G(s)‖. With Hokusai's wave and 160 batches, a weight of 2 leaves
0.7 of a photo's distance to the style and changes hardly more than the photo's colours; 6 leaves 0.4; 20
leaves 0.3, and eyes get lost among the strokes."""
STRONGEST_STYLE = 100.0
"""Upper bound of the weighted style loss of the photos themselves, with which a training begins. With
`STYLE_WEIGHT`, this loss is 45 to 121 for nine paintings, and 262 for the mosaic that this project draws. The
mosaic's style then hides what a photo shows: after 600 batches, content loss is 17.7 and style ratio 0.08.
With a weight of 3 they are 11.8 and 0.11, and figures can be made out."""
PHOTOS = 4
"""Number of photos on which that loss is measured."""
TEMPORAL_WEIGHT = 400.0
"""Weight of the temporal loss. With the default profile's weight, skies in the style of Van Gogh's starry
night have no strokes. A weight of 300 makes videos flicker only 0.4 times as much as one of 0 does
(`benchmarks/results/style_temporal.md`); with 400, they flicker 0.9 times as much as with 300."""
LEVELS_WEIGHT = 100.0
"""Weight of the levels loss. Without it, 150 batches leave colours at 0.73 of a photo's distance to a starry
night, with it at 0.34, and the style ratio by AlexNet is 0.87 instead of 0.81."""
SIZES = tuple(
    JohnsonConfig(
        width=width,
        image_px=image_px,
        batch_size=batch_size,
        temporal_weight=TEMPORAL_WEIGHT,
        levels_weight=LEVELS_WEIGHT,
    )
    for width, image_px, batch_size in ((32, 256, 4), (32, 256, 2), (32, 256, 1), (16, 192, 1), (16, 128, 1))
)
"""Sizes of a training, from the paper's network and pictures downwards. Without the temporal loss, a batch of
each takes 5.8, 2.9, 1.4, 0.6 and 0.25 s of a core of an AMD EPYC with AVX-512."""


@dataclass(frozen=True)
class Plan:
    """How a training in a given time goes on after some batches."""

    after: int
    """Number of batches after which the plan was made."""
    config: JohnsonConfig
    """Settings from then on; `batches` is the length of the whole training."""


def work(size: JohnsonConfig) -> float:
    """Arithmetic of a batch relative to the last of `SIZES`, in which all of them agree within a tenth."""
    return size.batch_size * (size.image_px / 128) ** 2 * (0.6 + 0.4 * size.width / 16)


def plan(now: JohnsonConfig, step: int, photos: int, *, left: float, gone: float, before: float) -> Plan:
    """The plan after `step` batches with the settings `now`.

    `left` is the :func:`work` that there is time for, `gone` the part of the time that is over, `before` that
    part when the plan before was made, and `photos` the number of different photos.
    """
    if gone < LARGER_FROM:
        size = _size(now, step, left, gone)
    else:
        size = _larger(now, step, left) if before < LARGER_FROM else now
    batches = max(step, min(MOST_BATCHES, step + round(left / work(size))))
    config = replace(size, batches=batches)
    if gone < GROWS_UNTIL:
        rate = FAST if batches <= FAST_BATCHES else SLOW
        # Without augmentation, no photo may come twice.
        config = replace(config, learning_rate=rate, augment=photos < batches * size.batch_size)
    return Plan(step, config)


def _size(now: JohnsonConfig, step: int, left: float, gone: float) -> JohnsonConfig:
    def lasts(size: JohnsonConfig) -> float:
        return step + left / work(size)

    sizes = [
        replace(now, width=size.width, image_px=size.image_px, batch_size=size.batch_size) for size in SIZES
    ]
    if gone < GROWS_UNTIL:
        larger = [size for size in sizes if work(size) > work(now) and size.width >= now.width]
        if grown := next((size for size in larger if lasts(size) >= MARGIN * ENOUGH_BATCHES), None):
            return grown
    if lasts(now) >= ENOUGH_BATCHES / MARGIN:
        return now
    # A network keeps its width.
    smaller = [replace(size, width=now.width) for size in sizes]
    smaller = [size for size in smaller if work(size) < work(now)] or [now]
    return next((size for size in smaller if lasts(size) >= ENOUGH_BATCHES), smaller[-1])


def _larger(now: JohnsonConfig, step: int, left: float) -> JohnsonConfig:
    sides = (size.image_px for size in SIZES if size.image_px > now.image_px)
    larger = replace(now, image_px=min(sides, default=now.image_px))
    return larger if step + left / work(larger) >= LARGER_BATCHES else now


def style_weight(photos: PhotoSet, inputs: Mapping[str, Path], device: str) -> float:
    """`STYLE_WEIGHT`, or less for a painting whose style loss would start above `STRONGEST_STYLE`.

    `inputs` are those of :func:`~singleshot.style.training.train_style`.

    Raises:
        UserError: one of the inputs is missing or damaged.
    """
    loss = open_loss(inputs, JohnsonConfig(style_weight=STYLE_WEIGHT), device, torch.float32)
    with torch.no_grad():
        x = photos.batch(0, 0, PHOTOS, SIZES[-1].image_px, augment=True).to(device)
        begins = loss.style_weight * float(style_loss(loss.network.represent(x).grams, loss.painting))
    return round(STYLE_WEIGHT * min(1, STRONGEST_STYLE / begins), 2)
