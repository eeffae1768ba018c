"""Stage `measure_quality`: one cell a style; its pictures and its video in numbers, beside optimised ones."""

import json
from pathlib import Path

import pandas

from pipelines.engine.cells import Cell
from pipelines.engine.config import Config
from pipelines.engine.stage import Stage
from pipelines.styles import (
    BACKBONES,
    SAMPLES,
    STYLIZED,
    TRANSFERS,
    model_of,
    painting_of,
    trained,
    transfer_name,
    transfers,
    video_of,
)
from pipelines.video_cells import stylized_name
from tasks.style.evaluation.measure_quality import QualityParams, measure_quality

QUALITY = Path("results/style/quality.csv")
ITERATIONS = Path("results/style/iterations.csv")
SUMMARY = Path("results/style/summary.json")
PARTS = Path("results/style/quality")


def run(stage: Stage) -> None:
    """Leave `quality.csv`, and how optimisation reaches the networks' losses, in `iterations.csv`."""
    styles = stage.config.style.training.styles
    directories = stage.compute([_cell(stage.config, style) for style in styles], PARTS, gpu=True)
    stage.tabulate([directory / "quality.csv" for directory in directories], QUALITY)
    stage.tabulate([directory / "iterations.csv" for directory in directories], ITERATIONS)
    SUMMARY.write_text(json.dumps(_summary(pandas.read_csv(QUALITY)), indent=2) + "\n")


def _cell(config: Config, style: str) -> Cell:
    quality, transfer = config.style.quality, config.style.transfer
    video = video_of(config)
    pictures = {}
    if style == transfer.style:
        pictures = {
            settings.backbone: TRANSFERS / transfer_name(study, settings) / "picture.png"
            for study, settings in transfers(config)
            if study == quality.study
        }
    params = QualityParams(
        style,
        quality,
        gatys_photo=transfer.content if pictures else None,
        gatys_backbones=tuple(pictures),
        clip=video.name,
    )
    inputs = {
        "photos": SAMPLES,
        "painting": painting_of(style),
        "model": model_of(style),
        "vgg16": trained("vgg16"),
        "alexnet": trained("alexnet"),
        "lpips": BACKBONES / "lpips" / "heads.safetensors",
        "video": video,
        "stylized_video": STYLIZED / style / stylized_name(video),
        **{f"gatys-{backbone}": picture for backbone, picture in pictures.items()},
    }
    return Cell(style, measure_quality, params, inputs, {"style": style})


def _summary(quality: pandas.DataFrame) -> dict[str, float]:
    """What `dvc metrics` shows: by style, the means over the pictures and the video of its network."""
    columns = ["style_ratio", "content_loss", "ssim", "lpips", "warping_error_ratio"]
    means = quality[quality["method"] == "johnson"].groupby("style")[columns].mean()
    return {f"{style}/{column}": round(value, 4) for (style, column), value in means.stack().items()}
