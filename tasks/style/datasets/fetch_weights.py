"""Task: a backbone's trained weights, as they are and normalised, or the heads of LPIPS; with a card."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from annotated_types import Ge, Gt, Le
from safetensors.torch import save_file
from torch import Tensor

from tasks.job import Event, Job, Metrics, per_job
from tasks.style.backbones import BackboneName, at_least, load_backbone, normalize_activations, save_backbone
from tasks.style.datasets.photos import PhotoSet
from tasks.style.datasets.weights import Origin, WeightsSource, read_backbone, read_lpips_heads

SEED = 0
"""Of the crops that means are taken over. Configuration has no say: hundreds of crops leave no choice."""


@dataclass(frozen=True)
class NormalizationConfig:
    """What the mean activations are measured on, with average pooling."""

    crops: Annotated[int, Ge(1)] = 256
    """Random crops of the photos, in turn. After 96, of 36 COCO photos, a channel's mean over other crops was
    off one by 2 % (shallow layers) to 13 % (deepest), in the median."""
    size_px: Annotated[int, Ge(32)] = 224
    min_mean: Annotated[float, Gt(0), Le(1)] = 0.05
    """Lower bound of a channel's mean, relative to its layer's: a rarer filter is amplified only as if it had
    this. On COCO photos none of VGG16's 4,224 channels was rarer, one of VGG19's 5,504, seven of AlexNet's
    1,152. Relative, since the networks' layers have means from 0.05 to 260."""


@dataclass(frozen=True)
class WeightsParams:
    """The weights to fetch, and their source."""

    backbone: BackboneName | Literal["lpips"]
    source: WeightsSource
    normalization: NormalizationConfig | None
    """None for LPIPS' heads, which have none."""

    @classmethod
    def of(
        cls,
        backbone: BackboneName | Literal["lpips"],
        source: WeightsSource,
        normalization: NormalizationConfig,
    ) -> Self:
        """With only what matters for these: LPIPS' heads come from the package whatever the source."""
        if backbone == "lpips":
            return cls(backbone, "packages", None)
        return cls(backbone, source, normalization)

    def inputs(self, photos: Path) -> dict[str, Path]:
        """What :func:`fetch_weights` reads: `photos`, a directory for :class:`PhotoSet`, for a backbone."""
        return {"photos": photos} if self.normalization else {}


@dataclass(frozen=True)
class LayerMeans:
    """Mean activations of a layer's channels, before normalisation."""

    channels: int
    mean: float
    smallest: float
    clamped: int
    """Channels below the bound, whose mean stays below one."""

    @classmethod
    def of(cls, means: Tensor, min_mean: float) -> Self:
        """Statistics of channels' means (C)."""
        clamped = int((at_least(min_mean, means) > means).sum())
        return cls(len(means), float(means.mean()), float(means.min()), clamped)


@dataclass(frozen=True)
class Normalization:
    """How a backbone was normalised."""

    photos: int
    """Distinct ones; the crops are taken of these in turn."""
    crops: int
    size_px: int
    min_mean: float
    clamped: int
    layers: dict[str, LayerMeans]


@dataclass(frozen=True)
class WeightsCard:
    """What weights are."""

    name: str
    origin: Origin
    normalization: Normalization | None


@per_job
def fetch_weights(job: Job) -> Iterator[Event]:
    """Fetch a job's weights (:class:`WeightsParams`).

    For a backbone the output gets `weights.safetensors`, the trained values, and `normalized.safetensors`,
    those after :func:`~tasks.style.backbones.normalize_activations`; both are for
    :func:`~tasks.style.backbones.load_backbone`. For `lpips` it gets `heads.safetensors`: a weight for each
    channel (C), by names like `vgg16.relu1_2`. Beside them is `card.json` (:class:`WeightsCard`). Metrics are
    the means before normalisation, with the layer's depth as step.

    Raises:
        UserError: the weights can't be had or are damaged, or there are no photos.
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
    (job.output / "card.json").write_text(json.dumps(asdict(card), indent=2) + "\n")


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
