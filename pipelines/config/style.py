"""The part of the configuration that is about style transfer (Shen and Wang)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Le, MinLen

from singleshot.errors import UserError
from singleshot.style import shipped
from singleshot.style.apply.stylize import StylizeSettings
from singleshot.style.backbones import BackboneName
from singleshot.style.datasets.fetch_weights import NormalizationConfig
from singleshot.style.datasets.packing import PhotosConfig
from singleshot.style.datasets.paintings import DRAWN, PaintingConfig
from singleshot.style.datasets.weights import WeightsSource
from singleshot.style.gatys import GatysConfig, OptimizerName
from singleshot.style.johnson import JohnsonConfig, TrainStyleParams
from singleshot.style.losses import Criterion
from singleshot.style.precision import Precision
from singleshot.style.start import START, START_WIDTH
from tasks.measure_styles import QualityConfig, SpeedConfig
from tasks.stylize import LargeConfig
from tasks.transfer_style import TransferParams


@dataclass(frozen=True)
class PaintingsConfig:
    """The paintings, by the names of their styles."""

    sources: dict[str, PaintingConfig]
    long_side_px: Annotated[int, Ge(64)]
    """Length to which the long side of paintings is scaled, in pixels."""


@dataclass(frozen=True)
class WeightsConfig:
    """The source of the backbones' weights, and the photos on which their normalisation is measured."""

    source: WeightsSource
    normalization: NormalizationConfig


@dataclass(frozen=True)
class StudyConfig:
    """A comparison of every combination of backbones, losses, optimisers and paintings, at one size."""

    backbones: Annotated[tuple[BackboneName, ...], MinLen(1)]
    losses: Annotated[tuple[Criterion, ...], MinLen(1)]
    optimizers: Annotated[tuple[OptimizerName, ...], MinLen(1)]
    styles: Annotated[tuple[str, ...], MinLen(1)] | None
    """Names of the paintings; null for only `transfer.style`."""
    size_px: Annotated[int, Ge(32)]
    iterations: Annotated[int, Ge(1)]
    half_size_iterations: Annotated[int, Ge(0)] = 0
    """Number of iterations at half the size before these."""


@dataclass(frozen=True)
class TransferConfig:
    """Version 1, by optimisation (Gatys et al. 2016), of one photo."""

    content: str
    """Name of the photo."""
    style: str
    """Name of the painting, for studies that name none."""
    settings: GatysConfig
    """Settings that all studies share."""
    studies: dict[str, StudyConfig]


@dataclass(frozen=True)
class StyleTrainingConfig:
    """Version 2, with a network for each style (Johnson et al. 2016)."""

    styles: Annotated[tuple[str, ...], MinLen(1)]
    seed: Annotated[int, Ge(0)]
    start: Literal["shipped"] | None
    """What networks begin with; null for random weights. With `shipped`, the network of a painting that this
    project draws begins with that painting's shipped style. Any other network begins with one that has
    learned many drawn paintings."""
    johnson: JohnsonConfig
    style_weights: dict[str, Annotated[float, Ge(0)]]
    """Style weights that replace `johnson.style_weight`, by style."""

    def __post_init__(self) -> None:
        if self.start and self.johnson.width % START_WIDTH:
            raise UserError(
                f"style.training.johnson.width is {self.johnson.width}, but the shipped network has "
                f"{START_WIDTH} channels; set a multiple of them, or style.training.start=null"
            )


@dataclass(frozen=True)
class StylizeConfig:
    """The photos and the video that are stylised in each trained style."""

    photos: Annotated[tuple[str, ...], MinLen(1)]
    """Names of photos."""
    large: LargeConfig
    short_side_px: Annotated[int, Ge(32)] | None
    """Length to which the short side of photos is scaled, in pixels; null keeps their size."""
    video: str
    """Path of a video."""
    strength: Annotated[float, Ge(0), Le(1)]
    """Strength of the style, where 0 is the original and 1 the full style."""
    preserve_color: bool
    """Whether to keep the colours of the original."""
    precision: Precision
    batch_size: Annotated[int, Ge(1)]
    """Number of frames that go through the network together."""
    frames_per_segment: Annotated[int, Ge(1)]
    """Number of frames of a video in one cell; workers compute cells in parallel."""

    @property
    def settings(self) -> StylizeSettings:
        """The settings on which the pixels of a stylised picture depend."""
        return StylizeSettings(self.strength, self.preserve_color, self.precision)


@dataclass(frozen=True)
class StyleConfig:
    """Style transfer of images and videos (Shen and Wang)."""

    photos: PhotosConfig
    """Photos on which styles are trained."""
    samples: PhotosConfig
    """Photos that are stylised and measured. Photos that other settings name are among them."""
    paintings: PaintingsConfig
    weights: WeightsConfig
    transfer: TransferConfig
    training: StyleTrainingConfig
    stylize: StylizeConfig
    quality: QualityConfig
    speed: SpeedConfig

    def __post_init__(self) -> None:
        styles = self.training.styles
        if len(set(styles)) < len(styles):
            raise UserError(f"style.training.styles has a style twice ({', '.join(styles)}); take one out")
        if not self.transfer.studies:
            raise UserError("style.transfer.studies has no study; keep one")
        if self.quality.study not in (None, *self.transfer.studies):
            known = ", ".join(self.transfer.studies)
            raise UserError(f"style.quality.study is {self.quality.study!r}; set it to {known} or null")
        optimised = [style for study in self.transfer.studies.values() for style in study.styles or ()]
        named = (*self.training.styles, *self.training.style_weights, self.transfer.style, *optimised)
        for style in named:
            if style not in self.paintings.sources:
                known = ", ".join(self.paintings.sources)
                raise UserError(f"no painting {style!r}, only {known}; add it as paintings.sources.{style}")

    def training_of(self, style: str) -> TrainStyleParams:
        """How a style's network is trained."""
        training = self.training
        weight = training.style_weights.get(style, training.johnson.style_weight)
        johnson = replace(training.johnson, style_weight=weight)
        return TrainStyleParams(style, johnson, training.seed, unseen=self.quality.photos)

    def start_of(self, style: str) -> dict[str, Path]:
        """What a style's training begins with: the shipped style of its painting, else the shipped start."""
        if not self.training.start:
            return {}
        drawn = self.paintings.sources[style].source == DRAWN
        return {"start": shipped.FILES.get(style, START) if drawn else START}

    def transfers(self) -> Iterator[TransferParams]:
        """The pictures that are optimised (sections V.B, V.C, V.D and VI.A of the report)."""
        transfer = self.transfer
        for name, study in transfer.studies.items():
            styles = study.styles or [transfer.style]
            for backbone, loss, optimizer, style in product(
                study.backbones, study.losses, study.optimizers, styles
            ):
                settings = replace(
                    transfer.settings,
                    backbone=backbone,
                    criterion=loss,
                    optimizer=optimizer,
                    size_px=study.size_px,
                    iterations=study.iterations,
                    half_size_iterations=study.half_size_iterations,
                )
                yield TransferParams(name, transfer.content, style, settings)
