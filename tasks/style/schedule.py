"""What a network's training can be in a given time: the larger the pictures, the fewer the batches."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tasks.style.datasets.photos import PhotoSet
from tasks.style.johnson import JohnsonConfig, Trainer, initial_network, open_loss
from tasks.style.perceptual_loss import style_loss
from tasks.style.precision import resolve

ENOUGH_BATCHES = 1000
"""For a size to be chosen. With fewer, a smaller one comes nearer to the painting. So it is with photos in a
batch: in the same time, 150 batches of four leave a style ratio of 0.45 and 600 of one leave 0.35 (swirls,
128 px), 500 and 2,000 leave 0.22 and 0.19."""
MOST_BATCHES = 60_000
"""Two epochs of COCO in batches of 4, as in the paper."""
FAST_BATCHES = 3000
"""Up to which the learning rate is `FAST`, three times the paper's: few batches need longer steps. After
2,000, both leave a style ratio of 0.19, and with `FAST` the clip flickers 0.7 times as much."""
FAST, SLOW = 0.003, 0.001
STYLE_WEIGHT = 8.0
"""In units of 1 / ‖G(s)‖. Hokusai's wave after 160 batches: of a photo's distance to the style, 2 leaves 0.7,
hardly more than its colours are changed; 6 leaves 0.4; 20 leaves 0.3, and eyes get lost among the strokes."""
STRONGEST_STYLE = 100.0
"""The most that the weighted style loss of the photos themselves may be, with which a training begins. With
`STYLE_WEIGHT` it is 45 to 121 for nine paintings, and 262 for the mosaic that this project draws. That one
then hides what a photo shows: after 600 batches content loss is 17.7 and style ratio 0.08, with a weight of 3
they are 11.8 and 0.11, and figures can be made out."""
PHOTOS = 4
"""That it is measured on."""
TEMPORAL_WEIGHT = 200.0
"""A fifth of the default profile's, with which skies in the style of Van Gogh's starry night have no strokes.
Already 300 lets videos flicker 0.4 times as much as 0 does (`python -m benchmarks.style_temporal`)."""
SIZES = tuple(
    JohnsonConfig(width=width, image_px=image_px, batch_size=batch_size, temporal_weight=TEMPORAL_WEIGHT)
    for width, image_px, batch_size in ((32, 256, 4), (32, 256, 2), (32, 256, 1), (16, 192, 1), (16, 128, 1))
)
"""From the paper's network on its pictures downwards. On a core of an AMD EPYC with AMX, their batches take
5.8, 2.9, 1.4, 0.6 and 0.25 s of its time, without the temporal loss."""
PREVIEW_SECONDS = 60
MOST_PREVIEWS = 40
"""On the contact sheet."""


@dataclass(frozen=True)
class Schedule:
    """A training that takes a given time."""

    config: JohnsonConfig
    seconds_per_batch: float
    """On this machine as it was."""


def schedule(inputs: Mapping[str, Path], seconds: float, device: str) -> Schedule:
    """The largest size of which there is time for `ENOUGH_BATCHES`, by trying out; else the smallest.

    `inputs` are those of :func:`~tasks.style.train_style.train_style`.

    Raises:
        UserError: one of them is missing or damaged.
    """
    photos = PhotoSet.open(inputs["photos"])
    style_weight = _style_weight(photos, inputs, device)
    sizes = [replace(size, style_weight=style_weight) for size in SIZES]
    smallest = sizes[-1]
    base = _seconds_per_batch(photos, inputs, smallest, device)
    for size in sizes[:-1]:
        # Not tried where even its pixels alone take too long: a large batch may take half a minute.
        if ENOUGH_BATCHES * base * _pixels(size) / _pixels(smallest) > 2 * seconds:
            continue
        each = _seconds_per_batch(photos, inputs, size, device)
        if ENOUGH_BATCHES * each <= seconds:
            return Schedule(_config(size, photos, seconds, each), each)
    return Schedule(_config(smallest, photos, seconds, base), base)


@torch.no_grad()
def _style_weight(photos: PhotoSet, inputs: Mapping[str, Path], device: str) -> float:
    """`STYLE_WEIGHT`, or less for a painting that would begin with more than `STRONGEST_STYLE`."""
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
        augment=len(photos) < batches * size.batch_size,  # else no photo comes twice
        checkpoint_every=max(1, round(PREVIEW_SECONDS / seconds_per_batch), batches // MOST_PREVIEWS),
    )


def _seconds_per_batch(
    photos: PhotoSet, inputs: Mapping[str, Path], size: JohnsonConfig, device: str
) -> float:
    """Of an update, reading the photos included; the first one, which sets things up, is left out."""
    dtype = resolve(size.precision, device)
    network = initial_network(size.width, seed=0).to(device)
    trainer = Trainer(network, open_loss(inputs, size, device, dtype), size, batches=3, seed=0, dtype=dtype)
    for step in range(3):
        if step == 1:
            start = time.perf_counter()
        batch = photos.batch(0, step, size.batch_size, size.image_px, augment=True)
        trainer.update(batch).cpu()  # waits for the device
    return (time.perf_counter() - start) / 2


def _pixels(size: JohnsonConfig) -> int:
    return size.batch_size * size.image_px**2
