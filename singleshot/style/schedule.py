"""How far a training has come, and how large its pictures and network are if it has a given time.

The larger the pictures, the fewer the batches. A training in a given time begins with the smallest size, for
any other could be too large. What its batches take says which size the time allows: at first, and at half
time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

import torch

from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.johnson import JohnsonConfig, open_loss
from singleshot.style.perceptual_loss import style_loss

HALF = 0.5
"""Part of the time after which pictures have the next larger side, since the photos to stylise are larger
still. In the time of 400 batches of 128 px, 200 of them and then 89 of 192 px leave a style ratio by VGG19 of
0.34 instead of 0.39 (a starry night) and 0.55 instead of 0.59 (a wave)."""
PLANNED_AT = (0.05, HALF)
"""Parts of the time after which a training is planned: the first batches show what a batch takes."""
ENOUGH_BATCHES = 1000
"""Number of batches that a size must have time for in order to be chosen at first. With fewer batches, a
smaller size comes nearer to the painting. The same holds for the batch size: in the same time, 150 batches of
four photos leave a style ratio of 0.45 and 600 batches of one photo leave 0.35 (swirls, 128 px); 500 batches
of four leave 0.22 and 2,000 of one leave 0.19."""
LARGER_BATCHES = 200
"""The same at half time: so few leave a style faint in any case, and larger ones would be fewer still."""
REPORTS = 50
"""Number of rows of the loss curve of a training in a given time, at least."""
REPORT_SECONDS, SHOW_SECONDS, MOST_PREVIEWS = 30.0, 60.0, 40
"""Most seconds between two rows; seconds between previews, or more where these would be too many."""
REPORT_EVERY = 10
"""Number of batches between two rows of a training by batches, or a hundredth of all if that is more."""
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


class Pace:
    """How far a training has come, in batches, and what is due after each batch."""

    def __init__(
        self, length: float, report_every: float, show_every: float, plan_at: Sequence[float] = ()
    ) -> None:
        self.length = length
        self.report_every, self.show_every = report_every, show_every
        self.plan_at = plan_at
        """Parts of the length after which the rest is planned."""
        self.elapsed, self.worked = 0.0, 0.0
        """What is over of the length, and the :func:`work` done in it."""
        self._before = 0.0

    def advance(self, work: float) -> None:
        """Count a batch."""
        self._before, self.elapsed = self.elapsed, self.elapsed + self._taken()
        self.worked += work

    def _taken(self) -> float:
        return 1

    @property
    def done(self) -> float:
        """The part of the length that is over, at most 1."""
        return min(1, self.elapsed / self.length)

    @property
    def left(self) -> float:
        """The work that can be done in the rest, if it goes on as it went."""
        return max(0, self.length - self.elapsed) * self.worked / self.elapsed

    @property
    def is_shown(self) -> bool:
        """Whether a preview is due."""
        return self.done == 1 or self._passed(self.show_every)

    @property
    def is_planned(self) -> bool:
        """Whether the rest is to be planned."""
        return any(self._before < part * self.length <= self.elapsed < self.length for part in self.plan_at)

    @property
    def is_reported(self) -> bool:
        """Whether a row of losses is due, which comes before whatever else is."""
        return self.is_shown or self.is_planned or self._passed(self.report_every)

    def _passed(self, period: float) -> bool:
        return self._before // period < self.elapsed // period


class TimedPace(Pace):
    """The same in seconds of training, which begin now."""

    def __init__(self, seconds: float) -> None:
        report_every = min(REPORT_SECONDS, seconds / REPORTS)
        super().__init__(seconds, report_every, max(SHOW_SECONDS, seconds / MOST_PREVIEWS), PLANNED_AT)
        self._since = monotonic()

    def _taken(self) -> float:
        since, self._since = self._since, monotonic()
        return self._since - since


def work(size: JohnsonConfig) -> float:
    """Arithmetic of a batch relative to the last of `SIZES`, in which all of them agree within a tenth."""
    return size.batch_size * (size.image_px / 128) ** 2 * (0.6 + 0.4 * size.width / 16)


def planned(now: JohnsonConfig, step: int, photos: int, pace: Pace) -> JohnsonConfig:
    """The settings for the rest of the time, after `step` batches with the settings `now`.

    They are the largest with which the training has enough batches. A network keeps its width or grows.
    `photos` is the number of different photos.
    """

    def lasts(size: JohnsonConfig) -> float:
        return step + pace.left / work(size)

    def largest(sizes: Sequence[JohnsonConfig], enough: int) -> JohnsonConfig:
        return next((size for size in sizes if lasts(size) >= enough), sizes[-1])

    sizes = [
        replace(now, width=max(now.width, size.width), image_px=size.image_px, batch_size=size.batch_size)
        for size in SIZES
    ]
    if pace.done >= HALF:
        larger = min((size.image_px for size in sizes if size.image_px > now.image_px), default=now.image_px)
        near = [size for size in sizes if size.image_px <= larger and size.batch_size <= now.batch_size]
        return largest([replace(size, width=now.width) for size in near], LARGER_BATCHES)
    size = largest(sizes, ENOUGH_BATCHES)
    rate = FAST if lasts(size) <= FAST_BATCHES else SLOW
    # Without augmentation, no photo may come twice.
    return replace(size, learning_rate=rate, augment=photos < lasts(size) * size.batch_size)


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
