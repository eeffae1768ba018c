"""Task: trained weights of a backbone, original and normalised, or the heads of LPIPS, with a card."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from annotated_types import Ge, Gt, Le
from safetensors.torch import save_file
from torch import Tensor

from singleshot.style.backbones import (
    BackboneName,
    at_least,
    load_backbone,
    normalize_activations,
    save_backbone,
)
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.datasets.weights import Origin, WeightsSource, read_backbone, read_lpips_heads
from tasks.job import Event, Job, Metrics, per_job

SEED = 0
"""Seed of the crops that means are taken over. It isn't configurable, since with hundreds of crops the choice
hardly matters."""


@dataclass(frozen=True)
class NormalizationConfig:
    """Settings of the measurement of mean activations, with average pooling."""

    crops: Annotated[int, Ge(1)] = 256
    """Number of random crops, taken from the photos in turn. With 96 crops of 36 COCO photos, a channel's
    mean over other crops differed from one by 2 % (shallow layers) to 13 % (deepest layer), in the median."""
    size_px: Annotated[int, Ge(32)] = 224
    """Side of the square crops, in pixels."""
    min_mean: Annotated[float, Gt(0), Le(1)] = 0.05
    """Lower bound of a channel's mean activation, relative to the layer's mean: a filter that fires more
    rarely is amplified only as if it had this mean. On COCO photos, none of VGG16's 4,224 channels was below
    it, one of VGG19's 5,504, and seven of AlexNet's 1,152. It is relative because the layers' means range
    from 0.05 to 260."""


@dataclass(frozen=True)
class WeightsParams:
    """The weights to fetch, and their source."""

    backbone: BackboneName | Literal["lpips"]
    source: WeightsSource
    normalization: NormalizationConfig | None
    """None for LPIPS' heads, which aren't normalised."""

    @classmethod
    def of(
        cls,
        backbone: BackboneName | Literal["lpips"],
        source: WeightsSource,
        normalization: NormalizationConfig,
    ) -> Self:
        """Keep only the settings that matter; LPIPS' heads come from the package whatever the source."""
        if backbone == "lpips":
            return cls(backbone, "packages", None)
        return cls(backbone, source, normalization)

    def inputs(self, photos: Path) -> dict[str, Path]:
        """Inputs of :func:`fetch_weights`: for a backbone, `photos`, a directory for :class:`PhotoSet`."""
        return {"photos": photos} if self.normalization else {}


@dataclass(frozen=True)
class LayerMeans:
    """Mean activations of a layer's channels, before normalisation."""

    channels: int
    mean: float
    smallest: float
    clamped: int
    """Number of channels below the bound, whose mean stays below one."""

    @classmethod
    def of(cls, means: Tensor, min_mean: float) -> Self:
        """Statistics of channels' means (C)."""
        clamped = int((at_least(min_mean, means) > means).sum())
        return cls(len(means), float(means.mean()), float(means.min()), clamped)


@dataclass(frozen=True)
class Normalization:
    """How a backbone was normalised."""

    photos: int
    """Number of distinct photos, from which the crops are taken in turn."""
    crops: int
    size_px: int
    min_mean: float
    clamped: int
    layers: dict[str, LayerMeans]


@dataclass(frozen=True)
class WeightsCard:
    """Description of weights."""

    name: str
    origin: Origin
    normalization: Normalization | None


@per_job
def fetch_weights(job: Job) -> Iterator[Event]:
    """Fetch a job's weights (:class:`WeightsParams`).

    For a backbone, the output gets `weights.safetensors`, the trained values, and `normalized.safetensors`,
    the values after :func:`~singleshot.style.backbones.normalize_activations`; both are for
    :func:`~singleshot.style.backbones.load_backbone`. For `lpips`, it gets `heads.safetensors`: a weight for
    each channel (C), under names like `vgg16.relu1_2`. In both cases it gets `card.json`
    (:class:`WeightsCard`).
    Metrics are the means before normalisation, with the layer's depth as step.

    Raises:
        UserError: the weights can't be fetched or are damaged, or there are no photos.
    """
    params: WeightsParams = job.params
    normalization = None
    if params.backbone == "lpips":
        heads, origin = read_lpips_heads()
        save_file(heads, job.output / "heads.safetensors")
    else:
        backbone, origin = read_backbone(params.backbone, params.source)
        save_backbone(backbone, job.output / "weights.safetensors")
        normalization = _normalize(job)
        for depth, layer in enumerate(normalization.layers.values(), start=1):
            values = {"mean": layer.mean, "smallest_mean": layer.smallest, "clamped": layer.clamped}
            yield Metrics(depth, values)
    card = WeightsCard(params.backbone, origin, normalization)
    (job.output / "card.json").write_text(json.dumps(asdict(card), indent=2) + "\n", encoding="utf-8")


def _normalize(job: Job) -> Normalization:
    config: NormalizationConfig = job.params.normalization
    photos = PhotoSet.open(job.inputs["photos"])
    backbone = load_backbone(job.output / "weights.safetensors", pooling="average").to(job.device)
    crops = (
        photos.batch(SEED, i, 1, config.size_px, augment=True).to(job.device) for i in range(config.crops)
    )
    normalized, means = normalize_activations(backbone, crops, config.min_mean)
    save_backbone(normalized, job.output / "normalized.safetensors")
    layers = {layer: LayerMeans.of(μ, config.min_mean) for layer, μ in means.items()}
    clamped = sum(layer.clamped for layer in layers.values())
    return Normalization(len(photos), **asdict(config), clamped=clamped, layers=layers)
