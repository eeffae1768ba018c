"""The part of the configuration that is about style transfer."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt, MinLen

from pipelines.engine.pruner_name import PrunerName
from tasks.errors import UserError
from tasks.style.apply.stylize import StylizeSettings
from tasks.style.backbones import BackboneName
from tasks.style.datasets.fetch_photos import PhotosConfig
from tasks.style.datasets.fetch_weights import NormalizationConfig
from tasks.style.datasets.weights import WeightsSource
from tasks.style.evaluation.measure_quality import QualityConfig
from tasks.style.evaluation.measure_speed import SpeedConfig
from tasks.style.gatys import GatysConfig, OptimizerName
from tasks.style.johnson import JohnsonConfig
from tasks.style.losses import Criterion
from tasks.style.precision import Precision
from tasks.style.video.clip import ClipParams


@dataclass(frozen=True)
class PaintingConfig:
    """Where one painting comes from."""

    source: str
    """`drawn` for one of ours, or a picture file's path or URL."""
    sha256: str | None = None
    """SHA-256 that the file must have; null: any, and it is recorded."""


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
    """Gatys et al.'s optimisation (the report's Version 1): one photo and one painting in every study."""

    content: str
    """Name of the photo."""
    style: str
    settings: GatysConfig
    """What the studies leave as it is."""
    studies: dict[str, StudyConfig]


@dataclass(frozen=True)
class StyleTrainingConfig:
    """Networks after Johnson et al. (the report's Version 2), one for each style."""

    styles: Annotated[tuple[str, ...], MinLen(1)]
    seed: Annotated[int, Ge(0)]
    johnson: JohnsonConfig
    style_weights: dict[str, Annotated[float, Ge(0)]]
    """Style weights of the styles for which `johnson.style_weight` is not right."""


@dataclass(frozen=True)
class StylePruningConfig:
    """Style networks that are pruned before training: by each pruner, at each of its sparsities."""

    styles: tuple[str, ...]
    """Among those that are trained."""
    sparsities: dict[PrunerName, tuple[Annotated[float, Gt(0), Lt(1)], ...]]
    """Sparsities of each pruner."""
    photos: Annotated[int, Ge(1)]
    """Photos in the batch that weights are scored on."""
    iterations: Annotated[int, Ge(1)]
    """Rounds of scoring and pruning."""
    size_px: Annotated[int, Ge(32)]
    """Side of the pictures that are timed."""
    seconds: Annotated[float, Gt(0)]
    """Seconds for which each network is timed on each runtime."""


@dataclass(frozen=True)
class StylizeConfig:
    """What is put into each trained style, and how."""

    photos: Annotated[tuple[str, ...], MinLen(1)]
    """Names of photos."""
    short_side_px: Annotated[int, Ge(32)] | None
    """Short side that photos are scaled to; null keeps their size."""
    video: str | None
    """Path of a video; null is the clip."""
    strength: Annotated[float, Ge(0), Le(1)]
    preserve_color: bool
    precision: Precision
    batch_size: Annotated[int, Ge(1)]
    """Frames that go through the network together."""
    frames_per_segment: Annotated[int, Ge(1)]
    """Frames of a video that make one cell. Cells are computed in parallel."""

    @property
    def settings(self) -> StylizeSettings:
        """What the pixels of a stylised picture depend on."""
        return StylizeSettings(self.strength, self.preserve_color, self.precision)


@dataclass(frozen=True)
class StyleConfig:
    """Style transfer of images and videos (Shen and Wang)."""

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
