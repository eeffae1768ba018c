"""The step `measure_quality` has one cell for each style."""

import json
from pathlib import Path

import pandas

from pipelines.catalog.paths import ITERATIONS, QUALITY, SAMPLES, STYLIZED, TRANSFERS
from pipelines.catalog.styles import judges, model_of, transfer_name, transfers, video_of
from pipelines.catalog.videos import stylized_name
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from tasks.measure_quality import QualityParams, measure_quality
from tasks.tables import concatenate

SUMMARY = Path("results/style/summary.json")
PARTS = Path("results/style/quality")


def run(step: Step, config: Config) -> None:
    """Write `quality.csv`, and `iterations.csv`: how optimisation reaches the losses of the networks."""
    styles = config.style.training.styles
    directories = step.compute([_cell(config, style) for style in styles], PARTS, gpu=True)
    concatenate([directory / "quality.csv" for directory in directories], QUALITY)
    concatenate([directory / "iterations.csv" for directory in directories], ITERATIONS)
    SUMMARY.write_text(json.dumps(_summary(pandas.read_csv(QUALITY)), indent=2) + "\n", encoding="utf-8")


def _cell(config: Config, style: str) -> Cell:
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
