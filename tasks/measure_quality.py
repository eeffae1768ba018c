"""Task: the quality of a style's photos and video, compared with pictures by Gatys et al.'s optimisation.

The report calls that optimisation Version 1, and networks after Johnson et al. Version 2.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, MinLen
from torch import Tensor

from singleshot.errors import UserError
from singleshot.io.images import Frame, read_rgb
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.backbones import BackboneName
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.evaluation.evaluator import Evaluator, JudgedPicture, PictureScores
from singleshot.style.evaluation.warping_error import warping_error
from singleshot.style.gatys import LBFGS_HISTORY
from singleshot.style.johnson import JohnsonConfig
from singleshot.style.model_file import ModelCard, load_model
from singleshot.style.perceptual_loss import PerceptualLoss
from singleshot.style.transformer_net import TransformerNet
from singleshot.style.video.reader import read_frames
from tasks.job import Event, Job, Metrics, Progress, per_job
from tasks.tables import write_csv

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
    """Name of the photo or the video. For a video, the next six columns are means over frames."""
    content_loss: float
    """Mean squared difference between the picture and the photo in VGG16's relu2_2."""
    style_ratio: float
    """Part of the photo's squared distance to the painting's style that is left, in those layers of VGG16
    that networks are trained on. It favours networks, as VGG19 favours pictures of `gatys-vgg19`."""
    style_ratio_vgg19: float
    """Style ratio measured with VGG19, on the layers that Gatys et al.'s optimisation compares."""
    style_ratio_alexnet: float
    """Style ratio measured with AlexNet, on the layers that Gatys et al.'s optimisation compares."""
    ssim: float
    """Structural similarity to the photo."""
    lpips: float
    """LPIPS distance to the photo, measured with AlexNet. The networks were trained on VGG16's activations,
    so VGG16 would favour them."""
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
    painting = evaluator.painting_grams(training.style_px)
    loss = PerceptualLoss(evaluator.network, painting, training.loss_weights)
    rows: list[QualityRow] = []
    iterations: list[IterationRow] = []
    steps = len(params.config.photos) + (params.clip is not None)
    for n, name in enumerate(params.config.photos):
        photo = evaluator.represent(photos.read(name, short_side=params.config.size_px))
        stylized = evaluator.represent(stylize(network, photo.pixels[None], FLOAT32)[0])
        row = QualityRow(params.style, "johnson", name, *evaluator.scores(stylized, photo))
        if n < params.config.compared_photos:
            for last in _iterations(params, name, photo, stylized, loss):
                iterations.append(last)
                yield Progress((n + last.iteration / (params.config.max_iterations + 1)) / steps)
            equals = last.iteration if last.reached else None
            row = replace(row, equals_iterations=equals, iterations_tried=last.iteration)
        rows += [QualityRow(params.style, "photo", name, *evaluator.scores(photo, photo)), row]
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
    """The style's network, its card, and how it was trained."""
    path, painting = job.inputs["model"], job.inputs["painting"]
    network, card = load_model(path)
    if card.style_sha256 != hashlib.sha256(painting.read_bytes()).hexdigest():
        raise UserError(f"{path}: trained on another painting than {painting}; train the style again")
    try:
        training = JohnsonConfig(**card.settings["johnson"])
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: its card doesn't say how it was trained ({error}); train it again"
        ) from error
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
    return QualityRow(
        params.style, method, params.gatys_photo, *evaluator.scores(evaluator.represent(picture), photo)
    )


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
        frame, stylized_frame = (evaluator.represent(_to_tensor(pixels)) for pixels in pair)
        scores.append(evaluator.scores(stylized_frame, frame))
    means = PictureScores(*np.mean(scores, axis=0).tolist())
    return QualityRow(params.style, "johnson", clip, *means, flicker.relative)


def _to_tensor(frame: Frame) -> Tensor:
    return torch.from_numpy(frame).permute(2, 0, 1).float() / 255


def _means(rows: Sequence[QualityRow]) -> dict[str, float]:
    """Mean of each column over the network's rows that have a value in it."""
    columns = [field.name for field in fields(QualityRow)][3:]
    johnson = [row for row in rows if row.method == "johnson"]
    values = {name: [v for row in johnson if (v := getattr(row, name)) is not None] for name in columns}
    return {name: float(np.mean(v)) for name, v in values.items() if v}
