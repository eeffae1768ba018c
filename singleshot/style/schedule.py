"""Choice of the training that a given time allows: the larger the pictures, the fewer the batches."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.johnson import JohnsonConfig, Trainer, initial_network, open_levels, open_loss
from singleshot.style.perceptual_loss import style_loss
from singleshot.style.precision import resolve

ENOUGH_BATCHES = 1000
"""Number of batches that a size must have time for in order to be chosen. With fewer batches, a smaller size
comes nearer to the painting. The same holds for the batch size: in the same time, 150 batches of four photos
leave a style ratio of 0.45 and 600 batches of one photo leave 0.35 (swirls, 128 px); 500 batches of four
leave 0.22 and 2,000 of one leave 0.19."""
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
TEMPORAL_WEIGHT = 200.0
"""Weight of the temporal loss. It is a fifth of the default profile's weight, with which skies in the style
of Van Gogh's starry night have no strokes. A weight of 300 already makes videos flicker only 0.4 times as
much as a weight of 0 does (`python -m benchmarks.style_temporal`)."""
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
PREVIEW_SECONDS = 60
"""Time between previews, in seconds; longer if there would be more than `MOST_PREVIEWS`."""
MOST_PREVIEWS = 40
"""Number of previews that the contact sheet may have, roughly."""


@dataclass(frozen=True)
class Schedule:
    """A training that fits into a given time."""

    config: JohnsonConfig
    seconds_per_batch: float
    """Time for one batch on this machine, in seconds, as measured under its present load."""


def schedule(inputs: Mapping[str, Path], seconds: float, device: str) -> Schedule:
    """The largest size that leaves time for `ENOUGH_BATCHES`, found by trial; else the smallest size.

    `inputs` are those of :func:`~tasks.train_style.train_style`.

    Raises:
        UserError: one of the inputs is missing or damaged.
    """
    photos = PhotoSet.open(inputs["photos"])
    style_weight = _style_weight(photos, inputs, device)
    sizes = [replace(size, style_weight=style_weight) for size in SIZES]
    smallest = sizes[-1]
    base = _seconds_per_batch(photos, inputs, smallest, device)
    for size in sizes[:-1]:
        # A size whose pixels alone would take too long isn't tried: a large batch may take half a minute.
        if ENOUGH_BATCHES * base * _pixels(size) / _pixels(smallest) > 2 * seconds:
            continue
        each = _seconds_per_batch(photos, inputs, size, device)
        if ENOUGH_BATCHES * each <= seconds:
            return Schedule(_config(size, photos, seconds, each), each)
    return Schedule(_config(smallest, photos, seconds, base), base)


@torch.no_grad()
def _style_weight(photos: PhotoSet, inputs: Mapping[str, Path], device: str) -> float:
    """`STYLE_WEIGHT`, or less for a painting whose style loss would start above `STRONGEST_STYLE`."""
    loss = open_loss(inputs, JohnsonConfig(style_weight=STYLE_WEIGHT), device, torch.float32)
    x = photos.batch(0, 0, PHOTOS, SIZES[-1].image_px, augment=True).to(device)
    begins = loss.style_weight * float(style_loss(loss.network.represent(x).grams, loss.painting))
    return round(STYLE_WEIGHT * min(1, STRONGEST_STYLE / begins), 2)


def _config(size: JohnsonConfig, photos: PhotoSet, seconds: float, seconds_per_batch: float) -> JohnsonConfig:
    batches = min(MOST_BATCHES, max(1, math.floor(seconds / seconds_per_batch)))
    return replace(
        size,
        batches=batches,
        learning_rate=FAST if batches <= FAST_BATCHES else SLOW,
        augment=len(photos) < batches * size.batch_size,  # otherwise, no photo comes twice
        checkpoint_every=max(1, round(PREVIEW_SECONDS / seconds_per_batch), batches // MOST_PREVIEWS),
    )


def _seconds_per_batch(
    photos: PhotoSet, inputs: Mapping[str, Path], size: JohnsonConfig, device: str
) -> float:
    """Seconds for an update, with reading of the photos; the first, which sets things up, doesn't count."""
    dtype = resolve(size.precision, device)
    network = initial_network(size.width, seed=0).to(device)
    loss, levels = open_loss(inputs, size, device, dtype), open_levels(inputs, size)
    trainer = Trainer(network, loss, size, levels=levels, batches=3, seed=0, dtype=dtype)
    for step in range(3):
        if step == 1:
            start = time.perf_counter()
        batch = photos.batch(0, step, size.batch_size, size.image_px, augment=True)
        trainer.update(batch).cpu()  # waits for the device
    return (time.perf_counter() - start) / 2


def _pixels(size: JohnsonConfig) -> int:
    return size.batch_size * size.image_px**2
