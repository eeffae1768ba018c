"""Task: measure the quality of the pictures that pruned style networks make, and the time that this takes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, cast

import numpy as np
import torch
from annotated_types import Ge, Gt
from torch import nn

from singleshot.errors import UserError
from singleshot.export.isolation import Samples
from singleshot.export.model_files import open_style, style_forms
from singleshot.export.onnx_model import load_onnx
from singleshot.export.runtimes.torch_eager import runner
from singleshot.export.timing import Timing, take_turns
from singleshot.export.worker import time_calls
from singleshot.io.images import encode_png
from singleshot.pruning.variant import DENSE, variant_name
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.evaluation.evaluator import Evaluator, JudgedPicture, PictureScores
from singleshot.style.model_file import load_model
from singleshot.style.pruning.masks import prunable
from tasks.job import Event, Job, Metrics, Progress, per_job
from tasks.tables import write_csv


@dataclass(frozen=True)
class PrunedNetwork:
    """One network of a style: the dense one, or one that was pruned before it was trained."""

    pruner: str
    """Name of the pruner; `dense` for the network that wasn't pruned."""
    sparsity: float

    @property
    def variant(self) -> str:
        """Name of the variant, e.g. `dense` or `snip-0.98`, with which the names of its inputs begin."""
        return variant_name(self.pruner, self.sparsity)


@dataclass(frozen=True)
class PrunedStylesParams:
    """Settings of the measurements of one style's networks, besides the input files."""

    style: str
    networks: tuple[PrunedNetwork, ...]
    photos: tuple[str, ...]
    """Names of photos in the set of photos."""
    quality_px: Annotated[int, Ge(32)]
    """Short side of photos and painting in pixels, where the quality of pictures is measured."""
    speed_px: Annotated[int, Ge(32)]
    """Side of the square picture that is timed, in pixels."""
    seconds: Annotated[float, Gt(0)]
    """Seconds for which each network, form and runtime is timed."""


@dataclass(frozen=True)
class PrunedStyleRow:
    """One network: a row of pruning.csv. A dense network has no compacted form."""

    style: str
    pruner: str
    sparsity: float
    weights_total: int
    """Number of weights that may be pruned, i.e. those of kernels."""
    weights_kept: int
    channels_total: int
    """Number of output channels of all convolutions."""
    channels_kept: int
    """The same after compaction."""
    parameters: int
    """Number of parameters after compaction, with biases, scales and shifts."""
    bytes: int
    """Size of the smallest ONNX file that every runtime reads: the compacted one."""
    style_ratio: float
    """Mean over photos as in quality.csv, like `style_ratio_alexnet`, `content_loss`, `ssim` and `lpips`."""
    style_ratio_alexnet: float
    content_loss: float
    ssim: float
    lpips: float
    photos: int
    size_px: int
    """Short side of the pictures that were timed, in pixels."""
    threads: int
    torch_seconds: float
    """Median time for a picture in steady state, in float32, like the three fields that follow."""
    onnxruntime_seconds: float
    torch_compacted_seconds: float | None
    onnxruntime_compacted_seconds: float | None


@per_job
def measure_pruned_styles(job: Job) -> Iterator[Event]:
    """Measure a job's networks (:class:`PrunedStylesParams`). Nothing else should run meanwhile.

    Inputs: `photos` (directory of a :class:`PhotoSet`), `painting`, `vgg16`, `vgg19` and `alexnet`
    (`weights.safetensors`), `lpips` (`heads.safetensors`); each network's `model.safetensors` under the name
    of its variant, and each graph under variant and form, e.g. `snip-0.98/compacted`. The output gets
    `pruning.csv` (:class:`PrunedStyleRow`), `photo.png` and, for each network, that photo stylised as
    `<variant>.png`.

    All forms of all networks take turns on both runtimes, on as many threads as PyTorch has.

    Raises:
        UserError: an input is damaged, or belongs to another style or another network.
    """
    params: PrunedStylesParams = job.params
    evaluator = Evaluator(job.inputs, params.quality_px, job.device)
    photos = PhotoSet.open(job.inputs["photos"])
    pictures = [
        evaluator.represent(photos.read(name, short_side=params.quality_px)) for name in params.photos
    ]
    (job.output / "photo.png").write_bytes(encode_png(pictures[0].pixels.cpu()))
    scores = {}
    for n, network in enumerate(params.networks, start=1):
        scores[network] = _quality(job, network, evaluator, pictures)
        yield Progress(n / len(params.networks) / 2)
    seconds = _seconds(job)
    rows = [_row(job, network, scores[network], seconds) for network in params.networks]
    write_csv(job.output / "pruning.csv", PrunedStyleRow, rows)
    yield Metrics(0, dict(_metrics(rows)))


def _quality(
    job: Job, network: PrunedNetwork, evaluator: Evaluator, photos: Sequence[JudgedPicture]
) -> PictureScores:
    """Mean scores over photos; the first stylised photo is saved."""
    model, card = load_model(job.inputs[network.variant])
    pruning: Mapping[str, Any] = card.settings.get("pruning", {"pruner": DENSE, "sparsity": 0.0})
    if (card.style, pruning["pruner"], pruning["sparsity"]) != (
        job.params.style,
        network.pruner,
        network.sparsity,
    ):
        raise UserError(
            f"{job.inputs[network.variant]}: of style {card.style}, {pruning['pruner']} at "
            f"{pruning['sparsity']:g}, not {job.params.style}, {network.variant}; train the styles again"
        )
    model = model.to(job.device)
    float32 = StylizeSettings(precision="float32")
    stylized = [stylize(model, photo.pixels[None], float32)[0] for photo in photos]
    (job.output / f"{network.variant}.png").write_bytes(encode_png(stylized[0].cpu()))
    scores = [
        evaluator.scores(evaluator.represent(x), photo) for x, photo in zip(stylized, photos, strict=True)
    ]
    return PictureScores(*np.mean(scores, axis=0).tolist())


@dataclass(frozen=True)
class _Form:
    """A network in one form on one runtime, in this process."""

    run: Callable[[], object]

    def measure(self, calls: int) -> Samples:
        return Samples(*time_calls([self.run] * calls), None)


def _seconds(job: Job) -> Mapping[str, float]:
    """Median time for a picture, by variant, form and runtime, e.g. `snip-0.98/compacted/torch`."""
    params: PrunedStylesParams = job.params
    side = params.speed_px
    pictures = np.random.default_rng(0).random((1, 3, side, side), dtype=np.float32)
    forms = {}
    for network in params.networks:
        source = job.inputs[network.variant]
        for form in style_forms(source):
            name = f"{network.variant}/{form}"
            style = open_style(source, form)
            eager = runner(style, style.module, torch.device("cpu"))
            graph = load_onnx(job.inputs[name], torch.get_num_threads())
            forms[f"{name}/torch"] = _Form(partial(eager, {"pictures": pictures}))
            forms[f"{name}/onnxruntime"] = _Form(partial(graph, pictures=pictures))
    for each in forms.values():
        each.run()  # a runtime's first call is slower
    timings = {name: cast(Timing, t) for name, t in take_turns(forms, params.seconds).items()}
    return {name: timing.p50_ms / 1000 for name, timing in timings.items()}


def _row(
    job: Job, network: PrunedNetwork, scores: PictureScores, seconds: Mapping[str, float]
) -> PrunedStyleRow:
    params: PrunedStylesParams = job.params
    source = job.inputs[network.variant]
    model, _ = load_model(source)
    forms = style_forms(source)
    largest, smallest = forms[0], forms[-1]
    compacted = open_style(source, smallest).module
    weights = prunable(model).values()
    return PrunedStyleRow(
        style=params.style,
        pruner=network.pruner,
        sparsity=network.sparsity,
        weights_total=sum(θ.numel() for θ in weights),
        weights_kept=sum(int(θ.count_nonzero()) for θ in weights),
        channels_total=_channels(model),
        channels_kept=_channels(compacted),
        parameters=sum(θ.numel() for θ in compacted.parameters()),
        bytes=job.inputs[f"{network.variant}/{smallest}"].stat().st_size,
        style_ratio=scores.style_ratio,
        style_ratio_alexnet=scores.style_ratio_alexnet,
        content_loss=scores.content_loss,
        ssim=scores.ssim,
        lpips=scores.lpips,
        photos=len(params.photos),
        size_px=params.speed_px,
        threads=torch.get_num_threads(),
        torch_seconds=seconds[f"{network.variant}/{largest}/torch"],
        onnxruntime_seconds=seconds[f"{network.variant}/{largest}/onnxruntime"],
        torch_compacted_seconds=seconds.get(f"{network.variant}/compacted/torch"),
        onnxruntime_compacted_seconds=seconds.get(f"{network.variant}/compacted/onnxruntime"),
    )


def _channels(network: nn.Module) -> int:
    return sum(module.out_channels for module in network.modules() if isinstance(module, nn.Conv2d))


def _metrics(rows: Sequence[PrunedStyleRow]) -> Iterator[tuple[str, float]]:
    """Metrics in which networks differ, by variant."""
    for row in rows:
        variant = variant_name(row.pruner, row.sparsity)
        seconds = row.onnxruntime_compacted_seconds or row.onnxruntime_seconds
        yield f"style_ratio_{variant}", row.style_ratio
        yield f"style_ratio_alexnet_{variant}", row.style_ratio_alexnet
        yield f"parameters_{variant}", row.parameters
        yield f"seconds_{variant}", seconds
