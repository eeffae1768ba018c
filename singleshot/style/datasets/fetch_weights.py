"""Task: trained weights, with a card, and backbones' values normalised by their activations on photos."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from safetensors.torch import save_file

from singleshot.job import Event, Job, Metrics, per_job
from singleshot.style.backbones import (
    BackboneName,
    at_least,
    load_backbone,
    normalize_activations,
    save_backbone,
)
from singleshot.style.datasets.cards import write_card
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.datasets.weights import WeightsSource, read_backbone, read_lpips_heads

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
    normalization: NormalizationConfig
    """LPIPS' heads, which come from the package whatever the source, aren't normalised."""


@per_job
def fetch_weights(job: Job) -> Iterator[Event]:
    """Fetch a job's weights (:class:`WeightsParams`).

    Inputs: `photos`, a directory for :class:`PhotoSet`. For a backbone, the output gets
    `weights.safetensors`, the trained values, and `normalized.safetensors`, the values after
    :func:`~singleshot.style.backbones.normalize_activations`; both are for
    :func:`~singleshot.style.backbones.load_backbone`. For `lpips`, it gets `heads.safetensors`: a weight for
    each channel (C), under names like `vgg16.relu1_2`. In both cases it gets `card.json`, which says how a
    backbone was normalised: for each of the `layers` its `channels`, their `mean` and `smallest` mean
    activation before, and how many are `clamped`: below the bound, so that their mean stays below one.
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
        for depth, layer in enumerate(normalization["layers"].values(), start=1):
            names = {"mean": "mean", "smallest_mean": "smallest", "clamped": "clamped"}
            yield Metrics(depth, {name: layer[own] for name, own in names.items()})
    write_card(job, {"name": params.backbone, "origin": asdict(origin), "normalization": normalization})


def _normalize(job: Job) -> dict[str, Any]:
    config: NormalizationConfig = job.params.normalization
    photos = PhotoSet.open(job.inputs["photos"])
    backbone = load_backbone(job.output / "weights.safetensors", pooling="average").to(job.device)
    crops = (
        photos.batch(SEED, i, 1, config.size_px, augment=True).to(job.device) for i in range(config.crops)
    )
    normalized, means = normalize_activations(backbone, crops, config.min_mean)
    save_backbone(normalized, job.output / "normalized.safetensors")
    layers: dict[str, dict[str, Any]] = {}
    for layer, μ in means.items():
        clamped = int((at_least(config.min_mean, μ) > μ).sum())
        statistics = {"channels": len(μ), "mean": float(μ.mean()), "smallest": float(μ.min())}
        layers[layer] = statistics | {"clamped": clamped}
    clamped = sum(layer["clamped"] for layer in layers.values())
    return {"photos": len(photos), **asdict(config), "clamped": clamped, "layers": layers}
