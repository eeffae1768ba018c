"""Task: train a style's network, with checkpoints, previews and a card."""

import hashlib
import io
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from time import monotonic, perf_counter

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from singleshot.errors import UserError
from singleshot.io.images import encode_jpeg, read_rgb, side_by_side
from singleshot.io.tables import write_csv
from singleshot.job import Artifact, Checkpoint, Event, Job, Metrics, Progress, per_job
from singleshot.random_streams import stream
from singleshot.style.backbones import Backbone, load_backbone
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.evaluation.verdict import judged
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
from singleshot.style.schedule import MOST_BATCHES, Plan, plan, work

CAPTION_PX = 36
"""Height of a caption of two lines, in pixels."""
FONT_PX = 14


def contact_sheet(pictures: Sequence[Tensor], captions: Sequence[str]) -> Tensor:
    """Pictures (3, H, W) of one size, each above its caption, in rows that make about a square."""
    cells = [
        torch.cat([picture, _caption(text, picture.shape[-1])], dim=-2)
        for picture, text in zip(pictures, captions, strict=True)
    ]
    height, width = cells[0].shape[-2:]
    columns = math.ceil((len(cells) * height / width) ** 0.5)
    cells += [torch.ones(3, height, width)] * (-len(cells) % columns)
    rows = [torch.cat(cells[i : i + columns], dim=-1) for i in range(0, len(cells), columns)]
    return torch.cat(rows, dim=-2)


def _caption(text: str, width: int) -> Tensor:
    """The text in black on white, (3, CAPTION_PX, width)."""
    strip = Image.new("L", (width, CAPTION_PX), "white")
    ImageDraw.Draw(strip).multiline_text((4, 1), text, "black", ImageFont.load_default(FONT_PX), spacing=2)
    return torch.from_numpy(np.array(strip)).float().div(255).expand(3, -1, -1)


GPU_READERS = 4
"""Number of processes that read photos while a GPU trains. On a CPU, they would take cores away from
training, and reading is only a twentieth of a batch's time."""
CHECKPOINT_SECONDS = 30.0
"""Seconds of training after which a checkpoint is written, however few batches that is: on a busy machine, a
batch may take many times as long as planned."""
REPORT_EVERY = 10
"""Number of batches between two rows of the loss curve, or a hundredth of all batches if that is more."""
PLANS = 50
"""Number of times that a training in a given time is planned anew, at least."""
FIRST_PLAN = 5
"""Number of batches after which such a training is planned first."""
PREVIEW_SECONDS, MOST_PREVIEWS = 60.0, 40
"""Time between previews of such a training, and the number of previews above which it is longer."""
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
    `model.safetensors`. A training in a given time is planned anew as it goes, and has previews every
    `PREVIEW_SECONDS`; its plans are in the card, and checkpoints have them, of which the last is that of the
    finished training: with more `seconds`, training goes on from it. On a CPU, equal parameters,
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
    def __init__(self, job: Job) -> None:
        self.job = job
        self.params: TrainStyleParams = job.params
        self.config, seed = self.params.johnson, self.params.seed
        self.photos = PhotoSet.open(job.inputs["photos"])
        self.batches = _Batches(self.photos, self.config, seed)
        self.jury = _Jury(job, self.photos)
        dtype = resolve(self.config.precision, job.device)
        network = initial_network(self.config.width, seed, job.inputs.get("start")).to(job.device)
        loss = open_loss(job.inputs, self.config, job.device, dtype)
        levels = open_levels(job.inputs, self.config)
        length = len(self.batches) if self.params.seconds is None else MOST_BATCHES
        self.trainer = Trainer(
            network, loss, self.config, levels=levels, batches=length, seed=seed, dtype=dtype
        )
        self.elapsed, self.worked, self.shown = 0.0, 0.0, 0.0
        """Seconds and :func:`work` of training so far, without interruptions, and the seconds at the last
        preview; counted only for a training in a given time."""
        self.plans: list[Plan] = []
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
        photos, saved = self._reader(), monotonic()
        counted = saved
        while self.step < self.trainer.batches:
            begun = self.step
            yield self._train(itertools.islice(photos, self._next_stop() - begun))
            if (given := self.params.seconds) is not None:
                now = monotonic()
                if self._planned_anew(given, now - counted, self.step - begun):
                    photos = self._reader()
                counted = now
            last = self.step == self.trainer.batches
            done = self.step / self.trainer.batches if given is None else min(1.0, self.elapsed / given)
            yield Progress(1.0 if last else done)
            if given is None:
                due = self.step % self.config.checkpoint_every == 0
            else:
                due = self.elapsed - self.shown >= max(PREVIEW_SECONDS, given / MOST_PREVIEWS)
            if shown := last or due:
                yield from self._show(last)
            if (given or not last) and (shown or monotonic() - saved >= CHECKPOINT_SECONDS):
                yield Checkpoint(self.step, self._state())
                saved = monotonic()
        output = self.job.output
        save_model(self.trainer.network, self._card(), output / "model.safetensors")
        write_csv(output / "losses.csv", Losses, self.losses)
        rows = {row.step: row for row in self.losses}
        captions = [
            f"{step:,} batches\ncontent {rows[step].content:.1f}, style {rows[step].style:.2f}"
            for step in self.thumbnails
        ]
        pictures = [picture.float() / 255 for picture in self.thumbnails.values()]
        sheet = contact_sheet([self.jury.contact_photo, *pictures], ["photo", *captions])
        (output / "contact_sheet.jpg").write_bytes(encode_jpeg(sheet))

    def _planned_anew(self, given: float, seconds: float, batches: int) -> bool:
        """Plan anew after `batches` that took `seconds`; whether the next ones differ in kind.

        The pace is the mean of that of these batches and that of the whole training, as the load changes.
        """
        done = batches * work(self.config)
        before = self.elapsed / given
        self.elapsed += seconds
        self.worked += done
        pace = (seconds / done + self.elapsed / self.worked) / 2
        left = max(0.0, given - self.elapsed) / pace
        gone = self.elapsed / given
        planned = plan(self.config, self.step, len(self.photos), left=left, gone=gone, before=before)
        if planned.config == self.config:
            return False
        self.plans.append(planned)
        was = self.config
        self._follow(planned)
        return replace(was, batches=None) != replace(self.config, batches=None)

    def _follow(self, planned: Plan) -> None:
        assert planned.config.batches is not None
        if planned.config.width != self.config.width:
            self.trainer.widen(planned.config.width)
        self.config = self.trainer.config = planned.config
        self.trainer.batches = planned.config.batches
        self.batches = _Batches(self.photos, self.config, self.params.seed)

    def _show(self, last: bool) -> Iterator[Event]:
        self.shown, picture = self.elapsed, self.trainer.stylize(self.jury.contact_photo)
        self.thumbnails[self.step] = picture.clamp(0, 1).mul(255).round().byte()
        model = None if last else encode_model(self.trainer.network, self._card())
        yield self._preview()
        if model is not None:
            yield Artifact(f"checkpoints/{self.step:06}.safetensors", model)

    def _reader(self) -> Iterator[Tensor]:
        longest = len(self.batches) if self.params.seconds is None else MOST_BATCHES
        readers = 0 if self.job.device == "cpu" else GPU_READERS
        steps = range(self.step, longest)
        return iter(DataLoader(self.batches, batch_size=None, sampler=steps, num_workers=readers))

    def _next_stop(self) -> int:
        total = self.trainer.batches
        if self.params.seconds is None:
            periods = [max(REPORT_EVERY, total // 100), self.config.checkpoint_every]
        else:
            periods = [max(1, total // PLANS) if self.plans else FIRST_PLAN]
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
            "clock": (self.elapsed, self.worked, self.shown),
            "plans": [asdict(each) for each in self.plans],
        }
        torch.save(state, buffer)
        return buffer.getvalue()

    def _restore(self, checkpoint: bytes) -> None:
        state = torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=True)
        for planned in state["plans"]:
            self.plans.append(Plan(planned["after"], JohnsonConfig(**planned["config"])))
        if self.plans:
            self._follow(self.plans[-1])
        self.trainer.load_state_dict(state)
        self.losses = [Losses(*row) for row in state["losses"]]
        self.thumbnails = state["thumbnails"]
        self.elapsed, self.worked, self.shown = state["clock"]
        given = self.params.seconds
        if given is not None and self.step == self.trainer.batches and self.elapsed < given:
            left, gone = (given - self.elapsed) * self.worked / self.elapsed, self.elapsed / given
            planned = plan(self.config, self.step, len(self.photos), left=left, gone=gone, before=gone)
            self.plans.append(planned)
            self._follow(planned)

    def _preview(self) -> Artifact:
        photos = self.batches[self.step - 1]
        generator = stream("preview", self.params.seed, self.step, bits=64)
        photo = photos[int(torch.randint(len(photos), (), generator=generator))]
        picture = side_by_side(photo, self.trainer.stylize(photo))
        return Artifact(f"previews/{self.step:06}.jpg", encode_jpeg(picture))

    def _card(self) -> ModelCard:
        names = ("batches", "width", "image_px", "batch_size", "learning_rate", "augment")
        described = [
            {"after": each.after} | {name: getattr(each.config, name) for name in names}
            for each in self.plans
        ]
        plans = {"plans": described} if described else {}
        arithmetic = {"arithmetic": str(self.trainer.dtype).removeprefix("torch.")}
        cards = (json.loads(path.read_text("utf-8")) for path in self.job.inputs["photos"].rglob("card.json"))
        origins = ", ".join(sorted({card["origin"] for card in cards}))
        loss, photo = self.trainer.loss, self.jury.contact_photo
        stylized, original = (loss.network.grams(x) for x in (self.trainer.stylize(photo), photo))
        ratio = {"style_ratio": style_ratio(stylized, original, loss.painting)}
        johnson = {"johnson": asdict(self.config)}
        return ModelCard(
            style=self.params.style,
            style_sha256=hashlib.sha256(self.job.inputs["painting"].read_bytes()).hexdigest(),
            photos=f"{len(self.photos)}, from {origins}",
            steps=self.step,
            settings=asdict(self.params) | johnson | arithmetic | plans,
            scores=self.losses[-1].named() | ratio | self.jury.scores(self.trainer),
            commit=self.job.commit,
        )


class _Jury:
    """Photos that the network is not trained on, and AlexNet, which judges their pictures."""

    def __init__(self, job: Job, photos: PhotoSet) -> None:
        self.photos: list[Tensor] = []
        self.alexnet: Backbone | None = None
        unseen: Sequence[str] = job.params.unseen
        if unseen:
            samples = PhotoSet.open(job.inputs["samples"])
            self.photos = [samples.read(name, short_side=JUDGED_PX) for name in unseen]
            self.contact_photo = samples.read(unseen[0], short_side=CONTACT_PX)
            self.alexnet = load_backbone(job.inputs["alexnet"]).to(job.device)
            config: JohnsonConfig = job.params.johnson
            self.painting = read_rgb(job.inputs["painting"], short_side=config.style_px).to(job.device)
        else:
            self.contact_photo = photos.read(photos.names[0], short_side=CONTACT_PX)

    def scores(self, trainer: Trainer) -> dict[str, float]:
        """The scores of the network as it is; none without photos."""
        if self.alexnet is None:
            return {}
        device = self.painting.device
        pictures = [trainer.stylize(photo).to(device) for photo in self.photos]
        return judged(pictures, [photo.to(device) for photo in self.photos], self.painting, self.alexnet)
