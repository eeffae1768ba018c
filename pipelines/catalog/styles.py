"""Settings, names and files of styles and their networks, for all stages of style transfer."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

from pipelines.catalog.paths import BACKBONES, PAINTINGS, STYLES, VIDEOS
from pipelines.config.params import Config
from singleshot.style.backbones import BackboneName
from singleshot.style.datasets.fetch import DRAWN
from singleshot.style.johnson import TrainStyleParams
from singleshot.style.shipped import path_of
from singleshot.style.start import START
from tasks.transfer_style import TransferParams


def painting_of(style: str) -> Path:
    """The picture that a style is learned from."""
    return PAINTINGS / style / "painting.png"


def model_of(style: str) -> Path:
    """The file of a style's network."""
    return STYLES / style / "model.safetensors"


def training_of(config: Config, style: str) -> TrainStyleParams:
    """How a style's network is trained."""
    training = config.style.training
    weight = training.style_weights.get(style, training.johnson.style_weight)
    johnson = replace(training.johnson, style_weight=weight)
    return TrainStyleParams(style, johnson, training.seed, unseen=config.style.quality.photos)


def start_of(config: Config, style: str) -> dict[str, Path]:
    """What a style's training begins with: the shipped style of its painting, or else the shipped start."""
    if not config.style.training.start:
        return {}
    drawn = config.style.paintings.sources[style].source == DRAWN
    return {"start": (path_of(style) if drawn else None) or START}


def trained(backbone: str) -> Path:
    """A backbone's weights as trained on ImageNet."""
    return BACKBONES / backbone / "weights.safetensors"


def normalized(backbone: str) -> Path:
    """A backbone's weights after normalisation to mean activations of one."""
    return BACKBONES / backbone / "normalized.safetensors"


def judges(style: str) -> dict[str, Path]:
    """The files against which stylised pictures are measured: the painting and the networks that compare."""
    backbones = {name: trained(name) for name in get_args(BackboneName)}
    return {"painting": painting_of(style), **backbones, "lpips": BACKBONES / "lpips" / "heads.safetensors"}


def video_of(config: Config) -> Path:
    """The video that is stylised."""
    given = config.style.stylize.video
    return Path(given) if given else VIDEOS / "clip" / "clip.mp4"


def transfers(config: Config) -> Iterator[TransferParams]:
    """The pictures that are optimised (sections V.B, V.C, V.D and VI.A of the report)."""
    transfer = config.style.transfer
    for name, study in transfer.studies.items():
        variants = product(study.backbones, study.losses, study.optimizers, study.styles or [transfer.style])
        for backbone, loss, optimizer, style in variants:
            settings = replace(
                transfer.settings,
                backbone=backbone,
                criterion=loss,
                optimizer=optimizer,
                size_px=study.size_px,
                iterations=study.iterations,
                half_size_iterations=study.half_size_iterations,
            )
            yield TransferParams(name, transfer.content, style, settings)


def transfer_name(picture: TransferParams) -> str:
    """The directory of an optimised picture below `TRANSFERS`, and the name of its run."""
    settings = picture.config
    return f"{picture.study}/{settings.backbone}-{settings.criterion}-{settings.optimizer}-{picture.style}"
