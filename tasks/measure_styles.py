"""Tasks: quality of a style's photos and video, and seconds per picture with both methods.

The report calls Gatys et al.'s optimisation Version 1, and networks after Johnson et al. Version 2.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import islice, product
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, MinLen
from numpy.typing import NDArray
from torch import Tensor

from singleshot.errors import UserError, explained
from singleshot.export.timing import time_calls
from singleshot.io.images import read_rgb
from singleshot.io.tables import write_csv
from singleshot.job import Event, Job, Metrics, Progress, per_job
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.backbones import BackboneName, load_backbone
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.evaluation.evaluator import Evaluator, JudgedPicture, PictureScores
from singleshot.style.evaluation.warping_error import warping_error
from singleshot.style.gatys import LBFGS_HISTORY, GatysConfig, Iterate, optimize
from singleshot.style.johnson import JohnsonConfig
from singleshot.style.model_file import ModelCard, load_model
from singleshot.style.perceptual_loss import PerceptualLoss
from singleshot.style.precision import Precision, resolve
from singleshot.style.transformer_net import TransformerNet
from singleshot.style.video.reader import read_frames

FLOAT32 = StylizeSettings(precision="float32")


@dataclass(frozen=True)
class QualityConfig:
    """Settings of the measurement of each style's quality."""

    photos: Annotated[tuple[str, ...], MinLen(1)]
    """Names of photos in the set of photos."""
    size_px: Annotated[int, Ge(32)]
    """Short side of photos and painting, in pixels."""
    study: str | None
    """Study whose pictures by Gatys et al.'s optimisation are measured too, at a short side of `size_px`;
    null for none."""
    compared_photos: Annotated[int, Ge(0)]
    """Number of photos, from the first one on, for which iterations of Gatys et al.'s optimisation are
    counted until its loss is no more than the trained network's."""
    max_iterations: Annotated[int, Ge(1)]
    """Number of iterations after which counting ends."""
    frame_step: Annotated[int, Ge(1)]
    """Distance between those frames of a video that are measured like photos, in frames. Flicker is measured
    between all consecutive frames."""


@dataclass(frozen=True)
class QualityParams:
    """Parameters that the measurement of one style depends on, besides the input files."""

    style: str
    config: QualityConfig
    gatys_photo: str | None = None
    """Photo of which there are pictures by Gatys et al.'s optimisation."""
    gatys_backbones: tuple[BackboneName, ...] = ()
    """Backbones of these pictures, one for each picture."""
    clip: str | None = None
    """Name of the video, if there is one."""


@dataclass(frozen=True)
class QualityRow:
    """One picture, or one video: a row of quality.csv. Values that weren't measured are empty."""

    style: str
    method: str
    """`photo` (not stylised, for reference), `johnson` or, with its backbone, `gatys-vgg19`."""
    image: str
    """Name of the photo or the video. For a video, scores are means over frames."""
    scores: PictureScores
    warping_error_ratio: float | None = None
    """Flicker of the stylised video divided by that of the original (Lai et al. 2018)."""
    equals_iterations: int | None = None
    """Number of iterations of the optimisation after which its loss is no more than the network's; empty if
    it is still more after all iterations that were tried."""
    iterations_tried: int | None = None


@dataclass(frozen=True)
class IterationRow:
    """One picture of the optimisation that is to reach the network's loss: a row of iterations.csv."""

    style: str
    image: str
    iteration: int
    """Number of updates; 0 is the photo."""
    content_loss: float
    """Unweighted content loss (eq. 5)."""
    style_loss: float
    """Unweighted style loss (eq. 6), summed over all layers."""
    total_loss: float
    """Total loss, weighted as in the network's training."""
    johnson_total_loss: float
    """Weighted loss of the network's picture, which the optimisation is to reach."""

    @property
    def reached(self) -> bool:
        """Whether the loss is no more than the network's."""
        return self.total_loss <= self.johnson_total_loss


@per_job
def measure_quality(job: Job) -> Iterator[Event]:
    """Measure a job's style (:class:`QualityParams`).

    Inputs: `photos` (directory of a :class:`PhotoSet`), `painting`, `model` (the style's), `vgg16`, `vgg19`
    and `alexnet` (`weights.safetensors`), `lpips` (`heads.safetensors`); with `params.gatys_photo`, the
    optimisation's picture for each backbone, under a name like `gatys-vgg19`; with `params.clip`, `video` and
    `stylized_video`. The output gets `quality.csv` (:class:`QualityRow`) and `iterations.csv`
    (:class:`IterationRow`). Everything is computed in float32.

    The number of iterations that a network's picture is worth is found as in Johnson et al. 2016 (section
    4.1, figure 5): from the photo on, L-BFGS changes the pixels so as to minimise the loss that the network
    was trained with. Every update is projected onto [0, 1], since the network's pictures are in that range
    too. An iteration is one evaluation of loss and gradient, as in :func:`singleshot.style.gatys.optimize`.
    The temporal loss of training is left out, since it isn't a loss of a single picture.

    Raises:
        UserError: an input is damaged, or doesn't match the parameters.
    """
    params: QualityParams = job.params
    evaluator = Evaluator(job.inputs, params.config.size_px, job.device)
    photos = PhotoSet.open(job.inputs["photos"])
    network, card, training = _load_network(job)
    painting = evaluator.network.grams(read_rgb(job.inputs["painting"], short_side=training.style_px))
    loss = PerceptualLoss(evaluator.network, painting, training.loss_weights)
    rows: list[QualityRow] = []
    iterations: list[IterationRow] = []
    steps = len(params.config.photos) + (params.clip is not None)
    for n, name in enumerate(params.config.photos):
        photo = evaluator.represent(photos.read(name, short_side=params.config.size_px))
        stylized = evaluator.represent(stylize(network, photo.pixels[None], FLOAT32)[0])
        row = QualityRow(params.style, "johnson", name, evaluator.scores(stylized, photo))
        if n < params.config.compared_photos:
            for last in _iterations(params, name, photo, stylized, loss):
                iterations.append(last)
                yield Progress((n + last.iteration / (params.config.max_iterations + 1)) / steps)
            equals = last.iteration if last.reached else None
            row = replace(row, equals_iterations=equals, iterations_tried=last.iteration)
        rows += [QualityRow(params.style, "photo", name, evaluator.scores(photo, photo)), row]
        if name == params.gatys_photo:
            rows += [_gatys_row(job, evaluator, photo, backbone) for backbone in params.gatys_backbones]
        yield Progress((n + 1) / steps)
    if params.clip is not None:
        rows.append(_video_row(job, evaluator, params.clip))
        yield Progress(1.0)
    write_csv(job.output / "quality.csv", QualityRow, rows)
    write_csv(job.output / "iterations.csv", IterationRow, iterations)
    yield Metrics(card.steps, _means(rows))


def _load_network(job: Job) -> tuple[TransformerNet, ModelCard, JohnsonConfig]:
    path, painting = job.inputs["model"], job.inputs["painting"]
    network, card = load_model(path)
    if card.style_sha256 != hashlib.sha256(painting.read_bytes()).hexdigest():
        raise UserError(f"{path}: trained on another painting than {painting}; train the style again")
    with explained(f"{path}: its card doesn't say how it was trained", "train it again"):
        training = JohnsonConfig(**card.settings["johnson"])
    return network.to(job.device), card, training


def _gatys_row(job: Job, evaluator: Evaluator, photo: JudgedPicture, backbone: BackboneName) -> QualityRow:
    params: QualityParams = job.params
    method = f"gatys-{backbone}"
    picture = read_rgb(job.inputs[method])
    if picture.shape != photo.pixels.shape:
        raise UserError(
            f"{job.inputs[method]}: has {min(picture.shape[1:])} px, but quality is measured at "
            f"{params.config.size_px}; give both the same size"
        )
    assert params.gatys_photo is not None
    scores = evaluator.scores(evaluator.represent(picture), photo)
    return QualityRow(params.style, method, params.gatys_photo, scores)


def _iterations(
    params: QualityParams, image: str, photo: JudgedPicture, stylized: JudgedPicture, loss: PerceptualLoss
) -> Iterator[IterationRow]:
    """Yield rows from the photo to the first picture whose loss is no more than the network's, if any."""
    content = photo.representation.content
    with torch.no_grad():
        goal = float(loss(stylized.pixels[None], content).total)
    descent = _projected_lbfgs(loss, photo, params.config.max_iterations)
    for iteration, (content_loss, style_loss, total_loss) in enumerate(descent):
        row = IterationRow(params.style, image, iteration, content_loss, style_loss, total_loss, goal)
        yield row
        if row.reached:
            return


def _projected_lbfgs(loss: PerceptualLoss, photo: JudgedPicture, iterations: int) -> Iterator[list[float]]:
    """Yield content, style and total loss of the photo, then after each update, projected onto [0, 1]."""
    x = photo.pixels.clone().requires_grad_()
    # Full steps, without a line search: in 60 updates of 12 pictures, none raised the loss by over 3 %.
    optimizer = torch.optim.LBFGS(
        [x], lr=1, max_iter=1, history_size=LBFGS_HISTORY, tolerance_grad=0, tolerance_change=0
    )

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        terms = loss(x[None], photo.representation.content)
        terms.total.backward()
        evaluated.append(torch.stack([terms.content, terms.style, terms.total]).tolist())
        return terms.total

    for _ in range(iterations + 1):
        evaluated: list[list[float]] = []
        optimizer.step(evaluate)
        yield evaluated[0]
        with torch.no_grad():
            x.clamp_(0, 1)


def _video_row(job: Job, evaluator: Evaluator, clip: str) -> QualityRow:
    params: QualityParams = job.params
    video, stylized = job.inputs["video"], job.inputs["stylized_video"]
    flicker = warping_error(read_frames(video), read_frames(stylized))
    pairs = zip(read_frames(video), read_frames(stylized), strict=True)
    scores = []
    for pair in islice(pairs, 0, None, params.config.frame_step):
        tensors = (torch.from_numpy(pixels).permute(2, 0, 1).float() / 255 for pixels in pair)
        frame, stylized_frame = map(evaluator.represent, tensors)
        scores.append(evaluator.scores(stylized_frame, frame))
    means = PictureScores(*np.mean([astuple(each) for each in scores], axis=0).tolist())
    return QualityRow(params.style, "johnson", clip, means, flicker.relative)


def _means(rows: Sequence[QualityRow]) -> dict[str, float]:
    """Mean of each column over the network's rows that have a value in it."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.method == "johnson":
            found = asdict(row)
            found = found.pop("scores") | {name: v for name, v in found.items() if not isinstance(v, str)}
            for name, value in found.items():
                if value is not None:
                    values.setdefault(name, []).append(value)
    return {name: float(np.mean(v)) for name, v in values.items()}


@dataclass(frozen=True)
class SpeedConfig:
    """Settings of the timing, which makes the report's Table I."""

    images: Annotated[int, Ge(1)]
    """Number of photos that each version is timed on: the first of those that styles are trained on."""
    sizes_px: Annotated[tuple[Annotated[int, Ge(32)], ...], MinLen(1)]
    """Sides of the square pictures, in pixels."""
    backbones: Annotated[tuple[BackboneName, ...], MinLen(1)]
    """Backbones of Gatys et al.'s optimisation."""
    iterations: Annotated[int, Ge(1)]
    """Number of iterations with which Gatys et al.'s optimisation makes a picture."""
    measured_iterations: Annotated[int, Ge(1)]
    """Number of iterations that are run and timed; the time of the rest is extrapolated."""
    repeats: Annotated[int, Ge(1)]
    """Number of times that each photo is stylised."""


@dataclass(frozen=True)
class SpeedParams:
    """Parameters that the timing depends on, besides the input files."""

    config: SpeedConfig
    gatys: GatysConfig
    """Settings of Gatys et al.'s optimisation, except backbone, size and iterations."""
    precision: Precision = "auto"
    """Arithmetic of the trained network; that of the optimisation is in `gatys`."""


@dataclass(frozen=True)
class SpeedRow:
    """One version at one size: a row of speed.csv."""

    version: int
    backbone: str
    """Backbone of Version 1; Version 2 has none."""
    size_px: int
    device: str
    """`cpu`, or the GPU's name."""
    seconds_per_image: float
    """Mean over photos and repeats, from the photo in memory to the finished picture in memory."""
    iterations: int | None
    """Number of iterations of Version 1, all of which `seconds_per_image` includes."""
    extrapolated: bool
    """Whether fewer iterations were timed, and the rest extrapolated."""
    images: int
    """Number of photos that were timed, each in every repeat."""
    threads: int
    """Number of compute threads of the CPU."""
    precision: str
    seconds_p50: float
    cpu_seconds_per_image: float
    """Processor time of all threads, in seconds. If it is less than `seconds_per_image` on one thread,
    something else ran on that core."""


Case = tuple[BackboneName | None, int]
"""What is timed: the backbone of Version 1, or None for Version 2, and a size in pixels."""


@per_job
def measure_speed(job: Job) -> Iterator[Event]:
    """Time a job's versions and sizes (:class:`SpeedParams`). Nothing else should run at the same time.

    Inputs: `photos` (directory of a :class:`PhotoSet`) and `painting`; for Version 1, the
    `normalized.safetensors` of each backbone, under the backbone's name; for Version 2, `model`. The output
    gets `speed.csv` (:class:`SpeedRow`). Metrics have the size as their step.

    Pictures are squares cut from the middle of the photos, as in the report. A photo that is smaller than the
    square is scaled up; it takes as long to stylise as any other picture. Version 2 stylises one picture at a
    time.

    A run of Version 1 begins with the features of photo and painting and with a first evaluation. Then
    come `iterations` more evaluations, of which only `measured_iterations` are run:

        seconds per image = first + iterations · seconds of the measured ones / measured iterations

    All cases take turns photo by photo, so that a machine that slows down slows all of them. Before that,
    they have a warm-up turn that doesn't count. Version 1 has it at the smallest size only, since the first
    evaluation warms up the others.

    Raises:
        UserError: an input is damaged, or Version 1 can't make its first step.
    """
    params: SpeedParams = job.params
    versions = _Versions(job)
    sizes = params.config.sizes_px
    cases: list[Case] = [(name, size_px) for size_px in sizes for name in (None, *params.config.backbones)]
    for case in cases:
        if case[0] is None or case[1] == min(sizes):
            versions.time(case, photo=0)
    samples: dict[Case, list[NDArray]] = {case: [] for case in cases}
    turns = list(product(range(params.config.repeats), range(params.config.images), cases))
    for n, (_, photo, case) in enumerate(turns, start=1):
        samples[case].append(versions.time(case, photo))
        yield Progress(n / len(turns))
    rows = [versions.row(case, seconds) for case, seconds in samples.items()]
    write_csv(job.output / "speed.csv", SpeedRow, rows)
    for size_px in sizes:
        seconds = {row.backbone: row.seconds_per_image for row in rows if row.size_px == size_px}
        values = {"seconds_version_2": (version_2 := seconds.pop(""))}
        for backbone, version_1 in seconds.items():
            values |= {f"seconds_{backbone}": version_1, f"speedup_{backbone}": version_1 / version_2}
        yield Metrics(size_px, values)


class _Versions:
    def __init__(self, job: Job) -> None:
        self.device, self.params = torch.device(job.device), job.params
        self.photos = PhotoSet.open(job.inputs["photos"])
        if len(self.photos) < self.params.config.images:
            raise UserError(
                f"{job.inputs['photos']}: has {len(self.photos)} photos, fewer than the "
                f"{self.params.config.images} to time; lower speed.images"
            )
        self.paintings = {
            size_px: read_rgb(job.inputs["painting"], short_side=size_px).to(self.device)
            for size_px in self.params.config.sizes_px
        }
        self.network = load_model(job.inputs["model"])[0].to(self.device)
        self.backbones = {
            name: load_backbone(job.inputs[name], pooling="average").to(self.device)
            for name in self.params.config.backbones
        }

    def time(self, case: Case, photo: int) -> NDArray:
        """Seconds for the picture of photo number `photo`: elapsed, and of the processor's threads."""
        name, size_px = case
        square = self.photos.crop(photo, size_px, torch.Generator(), augment=False).to(self.device)
        if name is None:
            settings = StylizeSettings(precision=self.params.precision)
            return self._clock(lambda: stylize(self.network, square[None], settings))
        config = replace(
            self.params.gatys, backbone=name, size_px=size_px, iterations=self._measured_iterations
        )
        painting, backbone = self.paintings[size_px], self.backbones[name]
        iterates = optimize(square, painting, backbone, config)
        first = self._clock(lambda: next(iterates))
        # Only the last iterate is kept: each holds the picture and more, and there may be hundreds.
        last: deque[Iterate] = deque(maxlen=1)
        rest = self._clock(lambda: last.extend(iterates))
        if not last:
            raise UserError(
                f"{self.photos.names[photo]}: Version 1 with {name} at {size_px} px finds no "
                "lower loss than its first picture's, so there is nothing to time; change its settings or "
                "the photo"
            )
        factor = self.params.config.iterations / last[0].iteration
        return first + factor * rest

    @property
    def _measured_iterations(self) -> int:
        return min(self.params.config.measured_iterations, self.params.config.iterations)

    def _clock(self, work: Callable[[], object]) -> NDArray:
        def work_to_the_end() -> None:
            work()
            self._synchronize()

        self._synchronize()
        samples = time_calls([work_to_the_end])
        return np.array([*samples.wall_s, *samples.cpu_s])

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def row(self, case: Case, samples: Sequence[NDArray]) -> SpeedRow:
        wall, cpu = np.stack(samples, axis=1)
        backbone, size_px = case
        version_1 = backbone is not None
        params: SpeedParams = self.params
        precision = params.gatys.precision if version_1 else params.precision
        dtype = resolve(precision, str(self.device))
        return SpeedRow(
            version=1 if version_1 else 2,
            backbone=backbone or "",
            size_px=size_px,
            device=torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            seconds_per_image=float(wall.mean()),
            iterations=params.config.iterations if version_1 else None,
            extrapolated=version_1 and self._measured_iterations < params.config.iterations,
            images=params.config.images,
            threads=torch.get_num_threads(),
            precision=str(dtype).removeprefix("torch."),
            seconds_p50=float(np.median(wall)),
            cpu_seconds_per_image=float(cpu.mean()),
        )
