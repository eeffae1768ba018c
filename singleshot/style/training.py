"""Task: train a style's network, with checkpoints, previews and a card."""

import hashlib
import io
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass
from time import monotonic, perf_counter

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from singleshot.errors import UserError
from singleshot.io.folders import MODEL
from singleshot.io.images import contact_sheet, encode_jpeg, read_rgb
from singleshot.io.tables import write_csv
from singleshot.job import Artifact, Checkpoint, Event, Job, Metrics, Progress, per_job
from singleshot.random_streams import stream
from singleshot.style.backbones import load_backbone
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.evaluation.verdict import judged
from singleshot.style.johnson import JohnsonConfig, Trainer, TrainStyleParams, initial_network, open_loss
from singleshot.style.losses import levels
from singleshot.style.model_file import ModelCard, encode_model, save_model
from singleshot.style.perceptual_loss import style_ratio
from singleshot.style.precision import resolve
from singleshot.style.schedule import HALF, REPORT_EVERY, Pace, TimedPace, planned, work

GPU_READERS = 4
"""Number of processes that read photos while a GPU trains. On a CPU, they would take cores away from
training, and reading is only a twentieth of a batch's time."""
CHECKPOINT_SECONDS = 30.0
"""Seconds of training after which a checkpoint is written, however few batches that is: on a busy machine, a
batch may take many times as long as planned."""
CONTACT_PX = 192
"""Short side of the contact sheet's photo, in pixels."""
JUDGED_PX = 256
"""Short side of the photos that a network is judged on, in pixels."""


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

    Inputs: `photos` (a directory, :class:`PhotoSet`), `painting` (a picture) and `backbone` (VGG16's
    weights); with `start` (:mod:`singleshot.style.start`), training begins with that network.
    With `samples` (a :class:`PhotoSet` that has `params.unseen`) and `alexnet` (its weights), the network is
    judged (:func:`singleshot.style.evaluation.verdict.judged`). The output gets
    `model.safetensors` (:func:`singleshot.style.model_file.load_model`), `losses.csv` (:class:`Losses`) and
    `contact_sheet.jpg` (one photo, an unseen one if there is any, through all previews). Every
    `checkpoint_every` batches there are two artifacts: `previews/000500.jpg`, a photo of the batch beside its
    stylised picture (also at the end), and `checkpoints/000500.safetensors`, a model file like
    `model.safetensors`. A training in a given time has its plans in the card, previews every `SHOW_SECONDS`,
    and a checkpoint at its end: with more `seconds`, training goes on from it. On a CPU, equal parameters and
    inputs, and with `seconds` an equal clock, give equal bytes, with or without interruptions.

    Raises:
        UserError: an input is damaged, or a loss is no longer finite.
    """
    return _Training(job).run()


@dataclass(frozen=True)
class _Batches(Dataset[Tensor]):
    """The batches of a training, each of which can be made from its number alone."""

    photos: PhotoSet
    config: JohnsonConfig
    seed: int

    def __getitem__(self, step: int) -> Tensor:
        config = self.config
        return self.photos.batch(self.seed, step, config.batch_size, config.image_px, config.augment)


class _Training:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.params: TrainStyleParams = job.params
        config, seed = self.params.johnson, self.params.seed
        self.photos = PhotoSet.open(job.inputs["photos"])
        unseen = self.params.unseen
        samples = PhotoSet.open(job.inputs["samples"]) if unseen else self.photos
        self.contact_photo = samples.read((unseen or samples.names)[0], short_side=CONTACT_PX)
        self.jury = _Jury(job, samples)
        dtype = resolve(config.precision, job.device)
        network = initial_network(config.width, seed, job.inputs.get("start")).to(job.device)
        loss = open_loss(job.inputs, config, job.device, dtype)
        colours = levels(read_rgb(job.inputs["painting"], short_side=config.style_px)[None])
        self.trainer = Trainer(network, loss, config, levels=colours, seed=seed, dtype=dtype)
        self.plans: dict[int, JohnsonConfig] = {}
        """Settings that were changed for the rest of the time, by the number of batches before."""
        self.losses: list[Losses] = []
        self.thumbnails: dict[int, Tensor] = {}
        """The contact sheet's photo as stylised after each number of batches: uint8 (3, H, W)."""
        self.pace = self._pace()
        if job.checkpoint:
            self._restore(job.checkpoint)

    def _pace(self) -> Pace:
        if self.params.seconds:
            return TimedPace(self.params.seconds)
        config = self.config
        batches = config.batches or math.ceil(config.epochs * len(self.photos) / config.batch_size)
        return Pace(batches, max(REPORT_EVERY, batches // 100), config.checkpoint_every)

    @property
    def step(self) -> int:
        """Number of batches so far."""
        return self.trainer.step

    @property
    def config(self) -> JohnsonConfig:
        """Settings of the next batches."""
        return self.trainer.config

    def run(self) -> Iterator[Event]:
        """Train to the end."""
        photos, saved = self._reader(), monotonic()
        while self.pace.done < 1:
            yield self._train(photos)
            yield Progress(self.pace.done)
            if self.pace.is_planned:
                self._plan()
                photos = self._reader()
            if self.pace.is_shown:
                yield from self._show()
            due = self.pace.is_shown or monotonic() - saved >= CHECKPOINT_SECONDS
            if due and (self.params.seconds or self.pace.done < 1):
                yield Checkpoint(self.step, self._state())
                saved = monotonic()
        self._write_results()

    def _write_results(self) -> None:
        output = self.job.output
        save_model(self.trainer.network, self._card(), output / MODEL)
        write_csv(output / "losses.csv", Losses, self.losses)
        rows = {row.step: row for row in self.losses}
        captions = [
            f"{step:,} batches\ncontent {rows[step].content:.1f}, style {rows[step].style:.2f}"
            for step in self.thumbnails
        ]
        pictures = [picture.float() / 255 for picture in self.thumbnails.values()]
        sheet = contact_sheet([self.contact_photo, *pictures], ["photo", *captions])
        (output / "contact_sheet.jpg").write_bytes(encode_jpeg(sheet))

    def _plan(self) -> None:
        self.plans[self.step] = planned(self.config, self.step, len(self.photos), self.pace)
        self._follow(self.plans[self.step])

    def _follow(self, config: JohnsonConfig) -> None:
        if config.width != self.config.width:
            self.trainer.widen(config.width)
        self.trainer.config = config

    @property
    def _batches(self) -> _Batches:
        return _Batches(self.photos, self.config, self.params.seed)

    def _reader(self) -> Iterator[Tensor]:
        readers = 0 if self.job.device == "cpu" else GPU_READERS
        steps = itertools.count(self.step)
        return iter(DataLoader(self._batches, batch_size=None, sampler=steps, num_workers=readers))

    def _show(self) -> Iterator[Event]:
        picture = self.trainer.stylize(self.contact_photo)
        self.thumbnails[self.step] = picture.clamp(0, 1).mul(255).round().byte()
        yield self._preview()
        if self.pace.done < 1:
            model = encode_model(self.trainer.network, self._card())
            yield Artifact(f"checkpoints/{self.step:06}.safetensors", model)

    def _train(self, photos: Iterator[Tensor]) -> Metrics:
        """Train until a row of losses is due."""
        start = perf_counter()
        updates: list[Tensor] = []
        while not updates or not self.pace.is_reported:
            updates.append(self.trainer.update(next(photos), self.pace.done))
            self.pace.advance(work(self.config))
        losses = torch.stack(updates).cpu()  # waits for the device
        seconds = (perf_counter() - start) / len(losses)
        self._check_finite(losses)
        self.losses.append(Losses(self.step, *losses.double().mean(dim=0).tolist()))
        return Metrics(self.step, self.losses[-1].named() | {"seconds_per_batch": seconds})

    def _check_finite(self, losses: Tensor) -> None:
        finite = losses.isfinite().all(dim=1)
        finite[-1] &= all(bool(weight.isfinite().all()) for weight in self.trainer.network.parameters())
        if finite.all():
            return
        step = self.step - len(losses) + 1 + int(finite.long().argmin())
        good = max(self.thumbnails, default=0)
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
            "pace": (self.pace.length, self.pace.elapsed, self.pace.worked),
            "plans": {step: asdict(config) for step, config in self.plans.items()},
        }
        torch.save(state, buffer)
        return buffer.getvalue()

    def _restore(self, checkpoint: bytes) -> None:
        state = torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=True)
        self.plans = {step: JohnsonConfig(**config) for step, config in state["plans"].items()}
        self._follow([self.config, *self.plans.values()][-1])
        self.trainer.load_state_dict(state)
        self.losses = [Losses(*row) for row in state["losses"]]
        self.thumbnails = state["thumbnails"]
        length, self.pace.elapsed, self.pace.worked = state["pace"]
        if length < self.pace.length and self.pace.done < HALF:  # it was planned for less time
            self._plan()

    def _preview(self) -> Artifact:
        photos = self._batches[self.step - 1]
        generator = stream("preview", self.params.seed, self.step, bits=64)
        photo = photos[int(torch.randint(len(photos), (), generator=generator))]
        picture = torch.cat([photo, self.trainer.stylize(photo)], dim=-1)
        return Artifact(f"previews/{self.step:06}.jpg", encode_jpeg(picture))

    def _card(self) -> ModelCard:
        names = ("width", "image_px", "batch_size", "learning_rate", "augment")
        described = [
            {"after": step} | {name: getattr(config, name) for name in names}
            for step, config in self.plans.items()
        ]
        plans = {"plans": described} if described else {}
        arithmetic = {"arithmetic": str(self.trainer.dtype).removeprefix("torch.")}
        cards = (json.loads(path.read_text("utf-8")) for path in self.job.inputs["photos"].rglob("card.json"))
        origins = ", ".join(sorted({card["origin"] for card in cards}))
        loss, photo = self.trainer.loss, self.contact_photo
        stylized, original = (loss.network.grams(x) for x in (self.trainer.stylize(photo), photo))
        ratio = {"style_ratio": style_ratio(stylized, original, loss.painting)}
        johnson = {"johnson": asdict(self.config)}
        return ModelCard(
            style=self.params.style,
            style_sha256=hashlib.sha256(self.job.inputs["painting"].read_bytes()).hexdigest(),
            photos=f"{len(self.photos)}, from {origins}",
            steps=self.step,
            settings=asdict(self.params) | johnson | arithmetic | plans,
            scores=self.losses[-1].named() | ratio | self.jury.scores(self.trainer.stylize),
            commit=self.job.commit,
        )


class _Jury:
    """Photos that the network is not trained on, and AlexNet, which judges their pictures."""

    def __init__(self, job: Job, samples: PhotoSet) -> None:
        params: TrainStyleParams = job.params
        self.photos = [samples.read(name, short_side=JUDGED_PX).to(job.device) for name in params.unseen]
        if self.photos:
            self.alexnet = load_backbone(job.inputs["alexnet"]).to(job.device)
            painting = read_rgb(job.inputs["painting"], short_side=params.johnson.style_px)
            self.painting = painting.to(job.device)

    def scores(self, stylize: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The scores of a network's pictures; none without photos."""
        if not self.photos:
            return {}
        pictures = [stylize(photo).to(photo.device) for photo in self.photos]
        return judged(pictures, self.photos, self.painting, self.alexnet)
