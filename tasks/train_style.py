"""Task: train a style's network, with checkpoints, previews and a card."""

import hashlib
import io
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from time import monotonic, perf_counter

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from singleshot.errors import UserError
from singleshot.io.images import encode_jpeg, side_by_side
from singleshot.random_streams import stream
from singleshot.style.contact_sheet import contact_sheet
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.johnson import (
    JohnsonConfig,
    Trainer,
    TrainStyleParams,
    initial_network,
    open_levels,
    open_loss,
)
from singleshot.style.model_file import ModelCard, encode_model, save_model
from singleshot.style.perceptual_loss import style_ratio
from singleshot.style.precision import resolve
from singleshot.style.pruning.masks import Mask, load_mask
from tasks.job import Artifact, Checkpoint, Event, Job, Metrics, Progress, per_job
from tasks.tables import write_csv

MOST_BATCHES = 60_000
"""Upper bound of the length of a training in a given time: two epochs of COCO in batches of 4, as in the
paper."""
GPU_READERS = 4
"""Number of processes that read photos while a GPU trains. On a CPU, they would take cores away from
training, and reading is only a twentieth of a batch's time."""
CHECKPOINT_SECONDS = 30.0
"""Seconds of training after which a checkpoint is written, however few batches that is: on a busy machine, a
batch may take many times as long as planned."""
REPORT_EVERY = 10
"""Number of batches between two rows of the loss curve, or a hundredth of all batches if that is more."""
PLANS = 50
"""Number of times that the length of a training in a given time is planned anew, at least."""
CONTACT_PX = 192
"""Short side of the contact sheet's photo, in pixels."""


@dataclass(frozen=True)
class Losses:
    """Mean losses over some batches; a row of losses.csv."""

    step: int
    """Number of the last of these batches, counted from 1."""
    content: float
    """Feature reconstruction loss (eq. 5)."""
    style: float
    """Sum of the layers' style reconstruction losses (eq. 6)."""
    tv: float
    temporal: float
    levels: float
    """Squared distance of colours to the painting's."""
    total: float
    """Weighted sum of these losses."""

    def named(self) -> dict[str, float]:
        """The losses by name, e.g. `content_loss`."""
        return {f"{name}_loss": value for name, value in asdict(self).items() if name != "step"}


@per_job
def train_style(job: Job) -> Iterator[Event]:
    """Train a job's style (:class:`TrainStyleParams`).

    Inputs: `photos` (a directory, :class:`PhotoSet`), `painting` (a picture), `backbone` (VGG16's weights)
    and, for a pruned network, its `mask` (:func:`load_mask`); with `start`
    (:func:`singleshot.style.start.save_start`), training begins with that network. With a mask, initial
    weights, photos and updates are those of the dense network, without the pruned weights. The output gets
    `model.safetensors` (:func:`singleshot.style.model_file.load_model`), `losses.csv` (:class:`Losses`) and
    `contact_sheet.jpg` (one photo through all previews). Every `checkpoint_every` batches there are two
    artifacts: `previews/000500.jpg`, a photo of the batch beside its stylised picture (also at the end), and
    `checkpoints/000500.safetensors`, a model file like `model.safetensors`. A training in a given time is
    planned anew as it goes; its plans are in the card, and checkpoints have them. On a CPU, equal parameters,
    inputs and plans give equal bytes, with or without interruptions.

    Raises:
        UserError: an input is damaged, or a loss is no longer finite.
    """
    return _Training(job).run()


class _Batches(Dataset[Tensor]):
    """The batches of a training, each of which can be made from its number alone."""

    def __init__(self, photos: PhotoSet, config: JohnsonConfig, seed: int) -> None:
        self.photos, self.config, self.seed = photos, config, seed

    def __len__(self) -> int:
        config = self.config
        return config.batches or math.ceil(config.epochs * len(self.photos) / config.batch_size)

    def __getitem__(self, step: int) -> Tensor:
        config = self.config
        return self.photos.batch(self.seed, step, config.batch_size, config.image_px, config.augment)


class _Training:
    """One job: its trainer and the records of its training."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.params: TrainStyleParams = job.params
        self.config, seed = self.params.johnson, self.params.seed
        self.photos = PhotoSet.open(job.inputs["photos"])
        self.batches = _Batches(self.photos, self.config, seed)
        self.contact_photo = self.photos.read(self.photos.names[0], short_side=CONTACT_PX)
        dtype = resolve(self.config.precision, job.device)
        network = initial_network(self.config.width, seed, job.inputs.get("start")).to(job.device)
        self.mask: Mask | None = None
        if (path := job.inputs.get("mask")) is not None:
            self.mask = load_mask(path)
            self.mask.apply(network, path)
        loss = open_loss(job.inputs, self.config, job.device, dtype)
        levels = open_levels(job.inputs, self.config)
        self.trainer = Trainer(
            network, loss, self.config, levels=levels, batches=len(self.batches), seed=seed, dtype=dtype
        )
        self.elapsed = 0.0
        """Seconds of training so far, without interruptions; counted only for a training in a given time."""
        self.plans = [(0, len(self.batches))]
        """Each plan of the training's length: the batch after which it was made, and the length."""
        self.losses: list[Losses] = []
        self.thumbnails: dict[int, Tensor] = {}
        """The contact sheet's photo as stylised after each number of batches: uint8 (3, H, W)."""
        if job.checkpoint:
            self._restore(job.checkpoint)

    @property
    def step(self) -> int:
        """Number of batches so far."""
        return self.trainer.step

    def run(self) -> Iterator[Event]:
        """Train to the end."""
        photos, saved = iter(self._loader()), monotonic()
        counted = saved
        while self.step < self.trainer.batches:
            begun = self.step
            yield self._train(itertools.islice(photos, self._next_stop() - begun))
            if (given := self.params.seconds) is not None:
                now = monotonic()
                self._plan(given, now - counted, self.step - begun)
                counted = now
            yield Progress(self.step / self.trainer.batches)
            last = self.step == self.trainer.batches
            shown = last or self.step % self.config.checkpoint_every == 0
            if shown:
                yield from self._show(last)
            if not last and (shown or monotonic() - saved >= CHECKPOINT_SECONDS):
                yield Checkpoint(self.step, self._state())
                saved = monotonic()
        self._write()

    def _plan(self, given: float, seconds: float, batches: int) -> None:
        """Plan the length anew, after `batches` that took `seconds`, so that training ends in the time given.

        The pace is the mean of that of these batches and that of the whole training, as the load changes.
        """
        self.elapsed += seconds
        pace = (seconds / batches + self.elapsed / self.step) / 2
        left = max(0, round((given - self.elapsed) / pace))
        self.trainer.batches = min(self.step + left, MOST_BATCHES)
        if self.trainer.batches != self.plans[-1][1]:
            self.plans.append((self.step, self.trainer.batches))

    def _show(self, last: bool) -> Iterator[Event]:
        """Yield a preview and, before the end, the network as it is."""
        self.thumbnails[self.step] = _to_bytes(self.trainer.stylize(self.contact_photo))
        model = None if last else encode_model(self.trainer.network, self._card())
        yield self._preview()
        if model is not None:
            yield Artifact(f"checkpoints/{self.step:06}.safetensors", model)

    def _loader(self) -> DataLoader[Tensor]:
        """Batches from this step on."""
        longest = len(self.batches) if self.params.seconds is None else MOST_BATCHES
        steps = range(self.step, longest)
        readers = 0 if self.job.device == "cpu" else GPU_READERS
        return DataLoader(self.batches, batch_size=None, sampler=steps, num_workers=readers)

    def _next_stop(self) -> int:
        """The next step after which a row of losses or a preview is due."""
        total = self.trainer.batches
        periods = [max(REPORT_EVERY, total // 100), self.config.checkpoint_every]
        if self.params.seconds is not None:
            periods.append(max(1, total // PLANS))
        return min(total, *((self.step // period + 1) * period for period in periods))

    def _train(self, batches: Iterable[Tensor]) -> Metrics:
        start = perf_counter()
        losses = torch.stack(
            [self.trainer.update(photos) for photos in batches]
        ).cpu()  # waits for the device
        seconds = (perf_counter() - start) / len(losses)
        self._check_finite(losses)
        self.losses.append(Losses(self.step, *losses.double().mean(dim=0).tolist()))
        return Metrics(self.step, self.losses[-1].named() | {"seconds_per_batch": seconds})

    def _check_finite(self, losses: Tensor) -> None:
        """Raise UserError unless the last batches' losses (B, 6) and the weights after them are finite."""
        finite = losses.isfinite().all(dim=1)
        finite[-1] &= all(bool(weight.isfinite().all()) for weight in self.trainer.network.parameters())
        if finite.all():
            return
        step = self.step - len(losses) + 1 + int(finite.long().argmin())
        good = (self.step - 1) // self.config.checkpoint_every * self.config.checkpoint_every
        checkpoint = f"the last good checkpoint is of batch {good}" if good else "before any checkpoint"
        raise UserError(
            f"style {self.params.style}: loss or weights are no longer finite in batch {step}, {checkpoint}; "
            f"lower learning_rate ({self.config.learning_rate:g}) or style_weight "
            f"({self.config.style_weight:g}), or set precision to float32"
        )

    def _state(self) -> bytes:
        buffer = io.BytesIO()
        losses = [astuple(row) for row in self.losses]
        state = self.trainer.state_dict() | {
            "losses": losses,
            "thumbnails": self.thumbnails,
            "elapsed": self.elapsed,
            "plans": self.plans,
        }
        torch.save(state, buffer)
        return buffer.getvalue()

    def _restore(self, checkpoint: bytes) -> None:
        state = torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=True)
        self.trainer.load_state_dict(state)
        self.losses = [Losses(*row) for row in state["losses"]]
        self.thumbnails = state["thumbnails"]
        self.elapsed, self.plans = state["elapsed"], state["plans"]
        self.trainer.batches = self.plans[-1][1]

    def _preview(self) -> Artifact:
        """One photo of the last batch beside its stylised picture."""
        photos = self.batches[self.step - 1]
        generator = stream("preview", self.params.seed, self.step, bits=64)
        photo = photos[int(torch.randint(len(photos), (), generator=generator))]
        picture = side_by_side(photo, self.trainer.stylize(photo))
        return Artifact(f"previews/{self.step:06}.jpg", encode_jpeg(picture))

    def _card(self) -> ModelCard:
        plans = {} if self.params.seconds is None else {"plans": self.plans}
        arithmetic = {"arithmetic": str(self.trainer.dtype).removeprefix("torch.")}
        pruning = {} if self.mask is None else {"pruning": self.mask.origin}
        loss, photo = self.trainer.loss, self.contact_photo
        stylized, original = (loss.network.grams(x) for x in (self.trainer.stylize(photo), photo))
        ratio = {"style_ratio": style_ratio(stylized, original, loss.painting)}
        return ModelCard(
            style=self.params.style,
            style_sha256=hashlib.sha256(self.job.inputs["painting"].read_bytes()).hexdigest(),
            photos=f"{len(self.photos)}, from {', '.join(_origins(self.job.inputs['photos']))}",
            steps=self.step,
            settings=asdict(self.params) | arithmetic | pruning | plans,
            scores=self.losses[-1].named() | ratio,
            commit=self.job.commit,
        )

    def _write(self) -> None:
        output = self.job.output
        save_model(self.trainer.network, self._card(), output / "model.safetensors")
        write_csv(output / "losses.csv", Losses, self.losses)
        sheet = _sheet(self.contact_photo, self.thumbnails, self.losses)
        (output / "contact_sheet.jpg").write_bytes(encode_jpeg(sheet))


def _sheet(photo: Tensor, thumbnails: dict[int, Tensor], losses: Sequence[Losses]) -> Tensor:
    """The photo (3, H, W) and its stylised pictures, each above the losses at that step."""
    rows = {row.step: row for row in losses}
    captions = [
        f"{step:,} batches\ncontent {rows[step].content:.1f}, style {rows[step].style:.2f}"
        for step in thumbnails
    ]
    pictures = [photo, *(picture.float() / 255 for picture in thumbnails.values())]
    return contact_sheet(pictures, ["photo", *captions])


def _origins(photos: Path) -> list[str]:
    """Where the photos in a directory come from, according to the cards beside them."""
    cards = [json.loads(path.read_text("utf-8")) for path in sorted(photos.rglob("card.json"))]
    return sorted({card["origin"] for card in cards})


def _to_bytes(picture: Tensor) -> Tensor:
    return picture.clamp(0, 1).mul(255).round().byte()
