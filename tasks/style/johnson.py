"""Task: train a network that stylises photos in one pass (Johnson et al. 2016; report, Version 2)."""

import hashlib
import io
import itertools
import json
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from tasks.data.images import encode_jpeg, read_rgb, side_by_side
from tasks.data.randomness import stream
from tasks.data.tables import write_csv
from tasks.errors import UserError
from tasks.job import Artifact, Checkpoint, Event, Job, Metrics, Progress
from tasks.style.backbones import load_backbone
from tasks.style.contact_sheet import contact_sheet
from tasks.style.datasets.photos import PhotoSet
from tasks.style.losses import (
    JOHNSON_CONTENT_LAYER,
    JOHNSON_STYLE_LAYERS,
    feature_loss,
    gram_loss,
    normalized_gram,
    total_variation,
)
from tasks.style.model_file import ModelCard, encode_model, save_model
from tasks.style.precision import Precision, autocast, channels_last, resolve
from tasks.style.pruning.masks import Mask, load_mask
from tasks.style.transformer_net import TransformerNet

GPU_READERS = 4
"""Processes that read photos while a GPU trains. On a CPU they would take cores from training, and reading is
a twentieth of a batch's time."""
REPORT_EVERY = 10
"""Batches between two rows of the loss curve, or a hundredth of a training's if that is more."""
WARMUP = 20
"""Batches in which the learning rate rises. With this and the cosine, total loss after 300 batches is 14.0 in
place of 15.6 (swirls, width 16)."""
CONTACT_PX = 192
"""Short side of the contact sheet's photo."""


@dataclass(frozen=True)
class JohnsonConfig:
    """How a style is trained. Defaults are the report's; weights are those of eq. 5 and 6 as in losses.py."""

    width: Annotated[int, Ge(1)] = 32
    """Channels of the network's first convolution."""
    image_px: Annotated[int, Ge(32)] = 256
    """Side of the squares it is trained on."""
    style_px: Annotated[int, Ge(32)] = 256
    """Short side of the painting: the larger, the larger its strokes in a stylised photo."""
    batch_size: Annotated[int, Ge(1)] = 4
    epochs: Annotated[int, Ge(1)] = 2
    """Passes over the photos."""
    batches: Annotated[int, Ge(1)] | None = None
    """Length of training in place of `epochs`."""
    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Of Adam at its height: it rises over the first batches, and falls along half a cosine to the end."""
    content_weight: Annotated[float, Ge(0)] = 1.0
    style_weight: Annotated[float, Ge(0)] = 20.0
    """In units of 1 / ‖G(s)‖ of the painting s (:func:`style_weight`)."""
    tv_weight: Annotated[float, Ge(0)] = 0.0
    noise_weight: Annotated[float, Ge(0)] = 0.0
    """Of the difference that noise in a photo makes in its stylised picture: with it, videos flicker less."""
    noise_std: Annotated[float, Gt(0)] = 0.05
    """Of that noise; values are in [0, 1]."""
    augment: bool = False
    """Crop, mirror and tint photos at random, so that a few can serve."""
    precision: Precision = "auto"
    checkpoint_every: Annotated[int, Ge(1)] = 500
    """Batches between checkpoints, each with previews."""


@dataclass(frozen=True)
class TrainStyleParams:
    """What one style's network depends on, besides the painting, the photos and the loss network."""

    style: str
    johnson: JohnsonConfig
    seed: int = 0


@dataclass(frozen=True)
class Losses:
    """Means over some batches; a row of losses.csv."""

    step: int
    """The last of those batches, counted from 1."""
    content: float
    """Feature reconstruction loss (eq. 5)."""
    style: float
    """Sum of the layers' style reconstruction losses (eq. 6)."""
    tv: float
    noise: float
    total: float
    """Weighted."""


def train_style(jobs: Sequence[Job]) -> Iterator[Event]:
    """Train each job's style (:class:`TrainStyleParams`).

    Inputs: `photos` (a directory, :class:`PhotoSet`), `painting` (a picture), `backbone` (VGG16's weights)
    and, for a pruned network, its `mask` (:func:`load_mask`): initial weights, photos and updates are then
    those of the dense one, without the pruned weights. The output gets
    `model.safetensors` (:func:`tasks.style.model_file.load_model`), `losses.csv` (:class:`Losses`) and
    `contact_sheet.jpg` (one photo through every checkpoint). Artifacts are `previews/000500.jpg`, a photo of
    the batch beside its stylised picture, for every checkpoint and the end, and for every checkpoint
    `checkpoints/000500.safetensors`, a model file too. On a CPU, equal parameters and inputs give equal
    bytes, with or without interruptions.

    Raises:
        UserError: an input is damaged, or a loss is no longer finite.
    """
    for i, job in enumerate(jobs):
        for event in _Training(i, job).run():
            if isinstance(event, Progress):
                event = Progress((i + event.fraction) / len(jobs))
            yield event


def style_weight(config: JohnsonConfig, style_grams: Mapping[str, Tensor]) -> float:
    """What eq. 6, summed over layers, is multiplied by, for a painting of these Gram matrices.

    It is the configured weight / ‖G(s)‖, with ‖G(s)‖² summed over the layers. Gradients of eq. 6 grow as
    ‖G(s)‖, so that one weight serves paintings of 3.4 (Hokusai's wave at 256 px), 7.3 (our swirls) and 34
    (our mosaic). Content 1e5 and style 1e10 of pytorch/examples (of means over Gram matrices) are 1 and 14 to
    34 in these units.
    """
    return config.style_weight / sum(float(G.square().sum()) for G in style_grams.values()) ** 0.5


def initial_network(width: int, seed: int) -> TransformerNet:
    """The network that training begins with, on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return channels_last(TransformerNet(width))


class Terms(NamedTuple):
    """The loss of stylised photos, and what it is the weighted sum of; scalars."""

    content: Tensor
    """Eq. 5."""
    style: Tensor
    """Eq. 6, summed over layers."""
    tv: Tensor
    total: Tensor


class PerceptualLoss:
    """How far stylised photos are from the photos' content and from a painting's style.

    λ_c · eq. 5 + λ_s · Σ eq. 6 / ‖G(s)‖ + λ_TV · total variation. `vgg16` and `painting` are files; VGG16
    runs in `dtype`, and all that is computed of its activations is in float32.
    """

    def __init__(
        self, vgg16: Path, painting: Path, config: JohnsonConfig, device: str, dtype: torch.dtype
    ) -> None:
        self.config, self.device, self.dtype = config, device, dtype
        self.vgg16 = channels_last(load_backbone(vgg16).to(device))
        self.style_grams = self._grams(read_rgb(painting, short_side=config.style_px))
        self.style_weight = style_weight(config, self.style_grams)

    def __call__(self, x: Tensor, ŷ: Tensor) -> Terms:
        """Of the photos x (N, 3, S, S), stylised as ŷ."""
        config = self.config
        φ_ŷ = self._features(ŷ, {JOHNSON_CONTENT_LAYER, *JOHNSON_STYLE_LAYERS})
        with torch.no_grad():
            φ_x = self._features(x, {JOHNSON_CONTENT_LAYER})
        content = feature_loss(φ_ŷ[JOHNSON_CONTENT_LAYER], φ_x[JOHNSON_CONTENT_LAYER])
        style = self._style_loss({layer: normalized_gram(φ_ŷ[layer]) for layer in JOHNSON_STYLE_LAYERS})
        tv = total_variation(ŷ)
        total = config.content_weight * content + self.style_weight * style + config.tv_weight * tv
        return Terms(content, style, tv, total)

    def style_ratio(self, photo: Tensor, stylized: Tensor) -> float:
        """Σ‖G(ŷ) - G(s)‖² / Σ‖G(x) - G(s)‖² of one photo x (3, H, W), stylised as ŷ."""
        return float(self._style_loss(self._grams(stylized)) / self._style_loss(self._grams(photo)))

    def _style_loss(self, grams: Mapping[str, Tensor]) -> Tensor:
        """Σ_l ‖G_l(ŷ) - G_l(s)‖² for Gram matrices (N, C, C) of ŷ."""
        losses = [gram_loss(grams[layer], target) for layer, target in self.style_grams.items()]
        return torch.stack(losses).sum()

    @torch.no_grad()
    def _grams(self, picture: Tensor) -> dict[str, Tensor]:
        """Normalised Gram matrices (1, C, C) of a picture (3, H, W)."""
        pictures = picture[None].to(self.device, memory_format=torch.channels_last)
        features = self._features(pictures, JOHNSON_STYLE_LAYERS)
        return {layer: normalized_gram(features[layer]) for layer in JOHNSON_STYLE_LAYERS}

    def _features(self, pictures: Tensor, layers: Collection[str]) -> dict[str, Tensor]:
        """Activations in float32, as losses and Gram matrices need them."""
        with autocast(self.device, self.dtype):
            activations = self.vgg16(pictures, layers)
        return {layer: activation.float() for layer, activation in activations.items()}


class _Batches(Dataset[Tensor]):
    """The batches of a training, each made by its number alone."""

    def __init__(self, photos: PhotoSet, config: JohnsonConfig, seed: int) -> None:
        self.photos, self.config, self.seed = photos, config, seed

    def __len__(self) -> int:
        config = self.config
        return config.batches or math.ceil(config.epochs * len(self.photos) / config.batch_size)

    def __getitem__(self, step: int) -> Tensor:
        config = self.config
        return self.photos.batch(self.seed, step, config.batch_size, config.image_px, config.augment)


class _Training:
    """One style's network, and all that changes while it trains."""

    def __init__(self, index: int, job: Job) -> None:
        self.index, self.device = index, job.device
        self.job, self.params = job, job.params
        self.config: JohnsonConfig = job.params.johnson
        self.dtype = resolve(self.config.precision, job.device)
        self.photos = PhotoSet.open(job.inputs["photos"])
        self.batches = _Batches(self.photos, self.config, self.params.seed)
        self.loss = PerceptualLoss(
            job.inputs["backbone"], job.inputs["painting"], self.config, job.device, self.dtype
        )
        self.contact_photo = self.photos.read(self.photos.names[0], short_side=CONTACT_PX)
        self.network = initial_network(self.config.width, self.params.seed).to(job.device)
        self.mask = self._hold_to_mask()
        self.optimizer = torch.optim.Adam(self.network.parameters(), self.config.learning_rate)
        self.step = 0
        self.losses: list[Losses] = []
        self.thumbnails: dict[int, Tensor] = {}
        """The contact sheet's photo as stylised after so many batches, uint8 (3, H, W)."""
        if job.checkpoint:
            self._restore(job.checkpoint)

    def run(self) -> Iterator[Event]:
        """Train to the end."""
        photos = iter(self._loader())
        while self.step < len(self.batches):
            yield self._train(itertools.islice(photos, self._next_stop() - self.step))
            yield Progress(self.step / len(self.batches))
            last = self.step == len(self.batches)
            if not last and self.step % self.config.checkpoint_every:
                continue
            yield self._preview()
            self.thumbnails[self.step] = _to_bytes(self._stylized(self.contact_photo))
            if not last:
                model = encode_model(self.network, self._card())
                yield Artifact(self.index, f"checkpoints/{self.step:06}.safetensors", model)
                yield Checkpoint(self.index, self.step, self._state())
        self._write()

    def _hold_to_mask(self) -> Mask | None:
        """Prune the network, for good, if there is a mask."""
        path = self.job.inputs.get("mask")
        if path is None:
            return None
        mask = load_mask(path)
        mask.hold(self.network, path)
        return mask

    def _loader(self) -> DataLoader[Tensor]:
        """Batches from this step on."""
        steps = range(self.step, len(self.batches))
        readers = 0 if self.device == "cpu" else GPU_READERS
        return DataLoader(self.batches, batch_size=None, sampler=steps, num_workers=readers)

    def _next_stop(self) -> int:
        """The next step after which there is something else to do."""
        periods = (max(REPORT_EVERY, len(self.batches) // 100), self.config.checkpoint_every)
        return min(len(self.batches), *((self.step // period + 1) * period for period in periods))

    def _train(self, batches: Iterable[Tensor]) -> Metrics:
        start, rows = time.perf_counter(), []
        for photos in batches:
            self.step += 1
            rows.append(self._update(photos.to(self.device, memory_format=torch.channels_last)))
        losses = torch.stack(rows).cpu()  # waits for the device
        seconds = (time.perf_counter() - start) / len(rows)
        self._check_finite(losses)
        self.losses.append(Losses(self.step, *losses.double().mean(dim=0).tolist()))
        return Metrics(self.index, self.step, self._last_losses() | {"seconds_per_batch": seconds})

    def _last_losses(self) -> dict[str, float]:
        return {f"{name}_loss": value for name, value in asdict(self.losses[-1]).items() if name != "step"}

    def _update(self, x: Tensor) -> Tensor:
        """One step on photos (N, 3, S, S): the five losses, in the order of :class:`Losses`."""
        config = self.config
        ŷ = self._transform(x)
        content, style, tv, perceptual = self.loss(x, ŷ)
        noise = self._noise_loss(x, ŷ) if config.noise_weight else torch.zeros_like(tv)
        total = perceptual + config.noise_weight * noise
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()
        return torch.stack([content, style, tv, noise, total]).detach()

    def _learning_rate(self) -> float:
        """Of this step, counted from 1."""
        done = (self.step - 1) / len(self.batches)
        return self.config.learning_rate * min(1, self.step / WARMUP) * (1 + math.cos(math.pi * done)) / 2

    def _noise_loss(self, x: Tensor, ŷ: Tensor) -> Tensor:
        """Mean squared difference between the stylised photos and those of the photos with noise."""
        generator = stream("noise", self.params.seed, self.step, bits=64)
        z = self.config.noise_std * torch.randn(x.shape, generator=generator).to(self.device)
        return functional.mse_loss(self._transform(x + z.to(x)), ŷ)

    def _transform(self, photos: Tensor) -> Tensor:
        with autocast(self.device, self.dtype):
            return self.network(photos)

    @torch.no_grad()
    def _stylized(self, photo: Tensor) -> Tensor:
        """A photo (3, H, W) on the CPU, stylised."""
        return self._transform(photo[None].to(self.device, memory_format=torch.channels_last))[0].cpu()

    def _check_finite(self, losses: Tensor) -> None:
        """UserError if a loss of the last batches (B, 5) is not finite, or what they made of the network."""
        finite = losses.isfinite().all(dim=1)
        finite[-1] &= all(bool(weight.isfinite().all()) for weight in self.network.parameters())
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
        state = {
            "step": self.step,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "losses": [astuple(row) for row in self.losses],
            "thumbnails": self.thumbnails,
        }
        torch.save(state, buffer)
        return buffer.getvalue()

    def _restore(self, checkpoint: bytes) -> None:
        state = torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=True)
        self.step = state["step"]
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.losses = [Losses(*row) for row in state["losses"]]
        self.thumbnails = state["thumbnails"]

    def _preview(self) -> Artifact:
        """One photo of the last batch beside its stylised picture."""
        photos = self.batches[self.step - 1]
        generator = stream("preview", self.params.seed, self.step, bits=64)
        photo = photos[int(torch.randint(len(photos), (), generator=generator))]
        picture = side_by_side(photo, self._stylized(photo))
        return Artifact(self.index, f"previews/{self.step:06}.jpg", encode_jpeg(picture))

    def _card(self) -> ModelCard:
        painting = self.job.inputs["painting"].read_bytes()
        arithmetic = {"arithmetic": str(self.dtype).removeprefix("torch.")}
        pruning = {} if self.mask is None else {"pruning": self.mask.origin}
        ratio = self.loss.style_ratio(self.contact_photo, self._stylized(self.contact_photo))
        return ModelCard(
            style=self.params.style,
            style_sha256=hashlib.sha256(painting).hexdigest(),
            photos=f"{len(self.photos)}, from {', '.join(_origins(self.job.inputs['photos']))}",
            steps=self.step,
            settings=asdict(self.params) | arithmetic | pruning,
            scores=self._last_losses() | {"style_ratio": ratio},
            commit=self.job.commit,
        )

    def _write(self) -> None:
        output = self.job.output
        save_model(self.network, self._card(), output / "model.safetensors")
        write_csv(output / "losses.csv", Losses, self.losses)
        losses = {row.step: row for row in self.losses}
        pictures = [self.contact_photo, *(picture.float() / 255 for picture in self.thumbnails.values())]
        captions = [
            f"{step:,} batches\ncontent {losses[step].content:.1f}, style {losses[step].style:.2f}"
            for step in self.thumbnails
        ]
        sheet = contact_sheet(pictures, ["photo", *captions])
        (output / "contact_sheet.jpg").write_bytes(encode_jpeg(sheet))


def _origins(photos: Path) -> list[str]:
    """Where the photos in a directory come from, as the cards beside them say."""
    cards = [json.loads(path.read_text()) for path in sorted(photos.rglob("card.json"))]
    return sorted({card["origin"] for card in cards})


def _to_bytes(picture: Tensor) -> Tensor:
    return picture.clamp(0, 1).mul(255).round().byte()
