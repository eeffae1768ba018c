"""The stage `measure_styles`: quality and speed of style transfer."""

import json
from pathlib import Path

import pandas

from pipelines.catalog.paths import (
    ITERATIONS,
    PHOTOS,
    QUALITY,
    SAMPLES,
    SPEED,
    STYLIZED,
    TRANSFERS,
)
from pipelines.catalog.styles import (
    judges,
    model_of,
    normalized,
    painting_of,
    stylized_name,
    transfer_name,
    transfers,
    video_of,
)
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Work, step
from tasks.measure_styles import QualityParams, SpeedParams, measure_quality, measure_speed
from tasks.tables import concatenate

SUMMARY = Path("results/style/summary.json")
PARTS = Path("results/style/quality")


@step(
    "measure_quality",
    tags=("style",),
    metrics=("style_ratio", "ssim", "lpips", "warping_error_ratio"),
    tables=(QUALITY, ITERATIONS),
)
def judge_styles(work: Work, config: Config) -> None:
    """Measure what stylised pictures keep of photo and painting, and how steady the video is.

    Means over photos. `style_ratio`: the fraction of the photo's distance to the painting that is left.
    `ssim` and `lpips` compare with the photo. `equals_iterations`: the iterations of optimisation (Gatys et
    al. 2016) that reach the same loss.
    """
    cells = [_quality(config, style) for style in config.style.training.styles]
    directories = work.compute(cells, PARTS, gpu=True)
    concatenate([directory / "quality.csv" for directory in directories], QUALITY)
    concatenate([directory / "iterations.csv" for directory in directories], ITERATIONS)
    SUMMARY.write_text(json.dumps(_summary(pandas.read_csv(QUALITY)), indent=2) + "\n", encoding="utf-8")


def _quality(config: Config, style: str) -> Cell:
    quality, transfer = config.style.quality, config.style.transfer
    video = video_of(config)
    pictures = {
        picture.config.backbone: TRANSFERS / transfer_name(picture) / "picture.png"
        for picture in transfers(config)
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
        **judges(style),
        "photos": SAMPLES,
        "model": model_of(style),
        "video": video,
        "stylized_video": STYLIZED / style / stylized_name(video),
        **{f"gatys-{backbone}": picture for backbone, picture in pictures.items()},
    }
    return Cell(style, measure_quality, params, inputs, {"style": style})


def _summary(quality: pandas.DataFrame) -> dict[str, float]:
    """For `dvc metrics`: means over the pictures and the video of each style's network."""
    judged = ["style_ratio", "style_ratio_vgg19", "style_ratio_alexnet"]
    columns = [*judged, "content_loss", "ssim", "lpips", "warping_error_ratio"]
    means = quality[quality["method"] == "johnson"].groupby("style")[columns].mean()
    return {f"{style}/{column}": round(value, 4) for (style, column), value in means.stack().items()}


@step("measure_speed", tags=("style",), tables=(SPEED,))
def time_styles(work: Work, config: Config) -> None:
    """Time a picture by optimisation and by a trained network, at several sizes.

    Steps are side lengths in pixels. `seconds_<backbone>`: the time by optimisation. `speed.csv` has all
    times.
    """
    speed, transfer = config.style.speed, config.style.transfer
    style = config.style.training.styles[0]
    params = SpeedParams(speed, transfer.settings, config.style.stylize.precision)
    inputs: dict[str, Path] = {"photos": PHOTOS, "painting": painting_of(style), "model": model_of(style)}
    inputs |= {backbone: normalized(backbone) for backbone in speed.backbones}
    # One cell, so that nothing runs beside what is timed.
    (directory,) = work.compute([Cell("speed", measure_speed, params, inputs, {"style": style})], gpu=True)
    concatenate([directory / "speed.csv"], SPEED)


STEPS = (judge_styles, time_styles)
