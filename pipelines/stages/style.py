"""Stages of style transfer: `pictures`, `styles` and `measure_styles`."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pandas

from pipelines import stages
from pipelines.config.params import Config
from pipelines.config.style import StyleConfig
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Work, step
from singleshot.io.tables import concatenate
from singleshot.style.backbones import BackboneName
from singleshot.style.datasets.fetch_weights import WeightsParams, fetch_weights
from singleshot.style.datasets.packing import PhotosParams, fetch_photos
from singleshot.style.datasets.paintings import PaintingParams, fetch_painting
from singleshot.style.training import train_style
from singleshot.style.video.join import join_segments, stylized_name
from singleshot.style.video.reader import VideoInfo, probe
from singleshot.style.video.segments import SEGMENT, StylizeSegmentParams, plan_segments, with_lead
from tasks.measure_styles import QualityParams, SpeedParams, measure_quality, measure_speed
from tasks.stylize import LargeParams, StylizeParams, stylize_large, stylize_photos, stylize_segment
from tasks.transfer_style import transfer_style

SUMMARY = Path("results/style/summary.json")
PARTS = Path("results/style/quality")


@step("fetch_images")
def fetch_images(work: Work, config: Config) -> None:
    """Pack the photos that styles are trained on, and copy or fetch the paintings."""
    work.compute(list(image_cells(config.style)), stages.IMAGES)


def image_cells(style: StyleConfig) -> Iterator[Cell]:
    """A cell for each shard of the photos, and one for each painting.

    Their inputs are drawn paintings, and the user's own files that the configuration names.
    """
    for name, photos in (("photos", style.photos), ("samples", style.samples)):
        for shard in range(photos.shards):
            params = PhotosParams(photos, shard)
            tags = {"source": photos.source}
            yield Cell(f"{name}/shard-{shard:02}", fetch_photos, params, params.inputs(), tags)
    for name, given in style.paintings.sources.items():
        painting = PaintingParams(name, given, style.paintings.long_side_px)
        yield Cell(f"paintings/{name}", fetch_painting, painting, painting.inputs(), {"style": name})


@step("fetch_weights")
def fetch_backbones(work: Work, config: Config) -> None:
    """Fetch the weights of VGG-16, VGG-19, AlexNet and LPIPS, and normalise the backbones' activations.

    Steps are layers. `mean`: the mean of a layer's activations before normalisation. `clamped`: the number of
    channels whose mean activation is close to zero.
    """
    weights = config.style.weights
    cells = [
        Cell(name, fetch_weights, params, {"photos": stages.PHOTOS}, {"backbone": name})
        for name in (*get_args(BackboneName), "lpips")
        for params in [WeightsParams(name, weights.source, weights.normalization)]
    ]
    work.compute(cells, stages.BACKBONES, gpu=True)


@step("transfer_style", stages.STUDIES)
def transfer_styles(work: Work, config: Config) -> None:
    """Optimise one picture at a time (Gatys et al. 2016), in studies of backbones, losses and optimisers.

    Steps are iterations. The pictures are among each run's artifacts; `studies.csv` has all losses.
    """
    cells = []
    for picture in config.style.transfers():
        settings = picture.config
        inputs = {
            "photos": stages.SAMPLES,
            "painting": stages.painting(picture.style),
            "backbone": stages.normalized_backbone(settings.backbone),
        }
        tags = {
            "study": picture.study,
            "style": picture.style,
            "backbone": settings.backbone,
            "loss": settings.criterion,
            "optimizer": settings.optimizer,
        }
        cells.append(Cell(picture.name, transfer_style, picture, inputs, tags))
    concatenate(work.compute(cells, stages.TRANSFERS, gpu=True), stages.STUDIES, name="history.csv")


@step("train_style")
def train_styles(work: Work, config: Config) -> None:
    """Train a network for each style (Johnson et al. 2016).

    Steps are batches. Previews and the contact sheet are among each run's artifacts.
    """
    cells = []
    for style in config.style.training.styles:
        inputs = {
            "photos": stages.PHOTOS,
            "painting": stages.painting(style),
            "backbone": stages.backbone("vgg16"),
            "samples": stages.SAMPLES,
            "alexnet": stages.backbone("alexnet"),
            **config.style.start_of(style),
        }
        cells.append(Cell(style, train_style, config.style.training_of(style), inputs, {"style": style}))
    work.compute(cells, stages.STYLES, gpu=True)


@step("stylize")
def stylize(work: Work, config: Config) -> None:
    """Stylise the sample photos and a video in each trained style.

    The photos are among the artifacts.
    """
    video = Path(config.style.stylize.video)
    info = probe(video)
    work.compute(list(_stylized(config, video, info)), stages.STYLIZED, gpu=True)
    for style in config.style.training.styles:
        segments = stages.STYLIZED / style / "segments"
        join_segments(
            sorted(segments.rglob(SEGMENT)), video, info, stages.STYLIZED / style / stylized_name(video)
        )
        shutil.rmtree(segments)


def _stylized(config: Config, video: Path, info: VideoInfo) -> Iterator[Cell]:
    settings = config.style.stylize
    large = LargeParams(settings.large, replace(settings.settings, stroke=1.0))
    photo = Path(settings.large.photo)
    enlarged = {"photo": photo} if photo.suffix else {"photos": stages.SAMPLES}
    for style in config.style.training.styles:
        model = {"model": stages.style_network(style)}
        photos = StylizeParams(style, settings.photos, settings.short_side_px, settings.settings)
        inputs = model | {"photos": stages.SAMPLES, "painting": stages.painting(style)}
        yield Cell(f"{style}/photos", stylize_photos, photos, inputs, {"style": style})
        yield Cell(f"{style}/large", stylize_large, large, model | enlarged, {"style": style})
        inputs, tags = model | {"video": video}, {"style": style, "video": video.name}
        for number, segment in enumerate(plan_segments(info, settings.frames_per_segment)):
            read, lead = with_lead(info, segment)
            params = StylizeSegmentParams(read, info.format, settings.settings, settings.batch_size, lead)
            name, frames = f"{style}/segments/segment-{number:04}", segment.frames
            yield Cell(name, stylize_segment, params, inputs, tags, size=frames)


@step("measure_quality", stages.QUALITY, stages.ITERATIONS)
def judge_styles(work: Work, config: Config) -> None:
    """Measure what stylised pictures keep of the photo and the painting, and how steady the video is.

    Means over photos. `style_ratio`: the fraction of the photo's distance to the painting that is left.
    `ssim` and `lpips` compare with the photo. `equals_iterations`: the iterations of optimisation (Gatys et
    al. 2016) that reach the same loss.
    """
    cells = [_quality(config, style) for style in config.style.training.styles]
    directories = work.compute(cells, PARTS, gpu=True)
    concatenate(directories, stages.QUALITY)
    concatenate(directories, stages.ITERATIONS)
    SUMMARY.write_text(
        json.dumps(_summary(pandas.read_csv(stages.QUALITY)), indent=2) + "\n", encoding="utf-8"
    )


def _quality(config: Config, style: str) -> Cell:
    quality, transfer = config.style.quality, config.style.transfer
    video = Path(config.style.stylize.video)
    pictures = {
        picture.config.backbone: stages.TRANSFERS / picture.name / "picture.png"
        for picture in config.style.transfers()
        if (picture.study, picture.style) == (quality.study, style)
    }
    params = QualityParams(
        style,
        quality,
        gatys_photo=transfer.content if pictures else None,
        gatys_backbones=tuple(pictures),
        clip=video.name,
    )
    inputs = {
        "painting": stages.painting(style),
        **{backbone: stages.backbone(backbone) for backbone in get_args(BackboneName)},
        "lpips": stages.BACKBONES / "lpips" / "heads.safetensors",
        "photos": stages.SAMPLES,
        "model": stages.style_network(style),
        "video": video,
        "stylized_video": stages.STYLIZED / style / stylized_name(video),
        **{f"gatys-{backbone}": picture for backbone, picture in pictures.items()},
    }
    return Cell(style, measure_quality, params, inputs, {"style": style})


def _summary(quality: pandas.DataFrame) -> dict[str, float]:
    """For `dvc metrics`: means over the pictures and the video of each style's network."""
    judged = ["style_ratio", "style_ratio_vgg19", "style_ratio_alexnet"]
    columns = [*judged, "content_loss", "ssim", "lpips", "warping_error_ratio"]
    means = quality[quality["method"] == "johnson"].groupby("style")[columns].mean()
    return {f"{style}/{column}": round(value, 4) for (style, column), value in means.stack().items()}


@step("measure_speed", stages.SPEED)
def time_styles(work: Work, config: Config) -> None:
    """Time a picture by optimisation and by a trained network, at several sizes.

    Steps are side lengths in pixels. `seconds_<backbone>`: the time by optimisation. `speed.csv` has all
    times.
    """
    speed, transfer = config.style.speed, config.style.transfer
    style = config.style.training.styles[0]
    params = SpeedParams(speed, transfer.settings, config.style.stylize.precision)
    inputs: dict[str, Path] = {
        "photos": stages.PHOTOS,
        "painting": stages.painting(style),
        "model": stages.style_network(style),
    }
    inputs |= {backbone: stages.normalized_backbone(backbone) for backbone in speed.backbones}
    # One cell, so that nothing runs beside what is timed.
    cell = Cell("speed", measure_speed, params, inputs, {"style": style})
    concatenate(work.compute([cell], gpu=True), stages.SPEED)
