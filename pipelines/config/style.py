"""The part of the configuration that is about style transfer (seed 3)."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt, MinLen

from pipelines.config.names import PrunerName
from tasks.errors import UserError
from tasks.style.backbones import BackboneName
from tasks.style.clip import ClipParams
from tasks.style.fetch_photos import PhotosConfig
from tasks.style.fetch_weights import NormalizationConfig
from tasks.style.gatys import GatysConfig, OptimizerName
from tasks.style.johnson import JohnsonConfig
from tasks.style.losses import Criterion
from tasks.style.precision import Precision
from tasks.style.weights import WeightsSource


@dataclass(frozen=True)
class PaintingConfig:
    """Where one painting comes from."""

    source: str
    """`drawn` for one of ours, or a picture file's path or URL."""
    sha256: str | None = None
    """What the file's must be; null records it only."""


@dataclass(frozen=True)
class PaintingsConfig:
    """The paintings there are, by the name of the style."""

    sources: dict[str, PaintingConfig]
    long_side_px: Annotated[int, Ge(64)]


@dataclass(frozen=True)
class WeightsConfig:
    """Where the backbones' weights come from, and what their normalisation is measured on."""

    source: WeightsSource
    normalization: NormalizationConfig


@dataclass(frozen=True)
class StudyConfig:
    """A comparison: every combination of these, at one size."""

    backbones: Annotated[tuple[BackboneName, ...], MinLen(1)]
    losses: Annotated[tuple[Criterion, ...], MinLen(1)]
    optimizers: Annotated[tuple[OptimizerName, ...], MinLen(1)]
    size_px: Annotated[int, Ge(32)]
    iterations: Annotated[int, Ge(1)]


@dataclass(frozen=True)
class TransferConfig:
    """Version 1: one photo and one painting through every study."""

    content: str
    """Name of the photo."""
    style: str
    settings: GatysConfig
    """What the studies leave as it is."""
    studies: dict[str, StudyConfig]


@dataclass(frozen=True)
class StyleTrainingConfig:
    """Version 2: a network for each style."""

    styles: Annotated[tuple[str, ...], MinLen(1)]
    seed: Annotated[int, Ge(0)]
    johnson: JohnsonConfig
    style_weights: dict[str, Annotated[float, Ge(0)]]
    """In place of `johnson.style_weight`, for styles that need another."""


@dataclass(frozen=True)
class StylePruningConfig:
    """Networks of Version 2 that are pruned before training: by each pruner, at each of its sparsities."""

    styles: tuple[str, ...]
    """Among those that are trained."""
    sparsities: dict[PrunerName, tuple[Annotated[float, Gt(0), Lt(1)], ...]]
    """Of each pruner."""
    photos: Annotated[int, Ge(1)]
    """In the batch that weights are scored on."""
    iterations: Annotated[int, Ge(1)]
    """Rounds of scoring and pruning."""
    size_px: Annotated[int, Ge(32)]
    """Side of the pictures that are timed."""
    seconds: Annotated[float, Gt(0)]
    """For which each network is timed on each runtime."""


@dataclass(frozen=True)
class StylizeConfig:
    """What is put into each trained style, and how."""

    photos: Annotated[tuple[str, ...], MinLen(1)]
    """Names of photos."""
    short_side_px: Annotated[int, Ge(32)] | None
    """They are scaled to it; null keeps their size."""
    video: str | None
    """Path of a video; null is the clip."""
    strength: Annotated[float, Ge(0), Le(1)]
    preserve_color: bool
    precision: Precision
    batch_size: Annotated[int, Ge(1)]
    """Frames that go through the network together."""
    frames_per_segment: Annotated[int, Ge(1)]
    """Of a video: the frames of one cell, which workers share out."""


@dataclass(frozen=True)
class QualityConfig:
    """What is measured of each style."""

    photos: Annotated[tuple[str, ...], MinLen(1)]
    size_px: Annotated[int, Ge(32)]
    """Short side of photos and painting."""
    study: str | None
    """Whose pictures of Version 1 are measured too, of `size_px`; null for none."""
    compared_photos: Annotated[int, Ge(0)]
    """Photos for which it is counted how many iterations of Version 1 reach Version 2's loss."""
    max_iterations: Annotated[int, Ge(1)]
    frame_step: Annotated[int, Ge(1)]
    """Every so many-th frame of the video is measured as a photo is."""


@dataclass(frozen=True)
class SpeedConfig:
    """What is timed: Table I."""

    images: Annotated[int, Ge(1)]
    """Photos to time each version on, the first of those that styles are trained on."""
    sizes_px: Annotated[tuple[Annotated[int, Ge(32)], ...], MinLen(1)]
    backbones: Annotated[tuple[BackboneName, ...], MinLen(1)]
    """Of Version 1."""
    iterations: Annotated[int, Ge(1)]
    """That make a picture of Version 1."""
    measured_iterations: Annotated[int, Ge(1)]
    """That are run; the time of the rest is extrapolated."""
    repeats: Annotated[int, Ge(1)]


@dataclass(frozen=True)
class StyleConfig:
    """Seed 3: style transfer of images and videos."""

    photos: PhotosConfig
    """What styles are trained on."""
    samples: PhotosConfig
    """What is stylised and measured; the names of photos elsewhere are of these."""
    paintings: PaintingsConfig
    weights: WeightsConfig
    transfer: TransferConfig
    training: StyleTrainingConfig
    pruning: StylePruningConfig
    clip: ClipParams
    stylize: StylizeConfig
    quality: QualityConfig
    speed: SpeedConfig

    def __post_init__(self) -> None:
        for style in (*self.training.styles, *self.training.style_weights, self.transfer.style):
            if style not in self.paintings.sources:
                known = ", ".join(self.paintings.sources)
                raise UserError(
                    f"there is no painting {style!r}, only {known}; add it as paintings.sources.{style}"
                )
        for style in self.pruning.styles:
            if style not in self.training.styles:
                raise UserError(
                    f"style.pruning.styles has {style!r}, which isn't trained; add it to "
                    "style.training.styles, or take it out"
                )
