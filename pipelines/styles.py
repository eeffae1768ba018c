"""Where the stages of style transfer meet, and what they call things."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

from pipelines.engine.config import Config
from tasks.style.gatys import GatysConfig

IMAGES = Path("data/images")
PHOTOS = IMAGES / "photos"
"""What styles are trained on."""
SAMPLES = IMAGES / "samples"
"""What is stylised and measured."""
PAINTINGS = IMAGES / "paintings"
VIDEOS = Path("data/videos")
BACKBONES = Path("models/backbones")
STYLES = Path("models/styles")
TRANSFERS = Path("results/style/gatys")
STYLIZED = Path("results/style/stylized")


def painting_of(style: str) -> Path:
    """The picture that a style is learned from."""
    return PAINTINGS / style / "painting.png"


def model_of(style: str) -> Path:
    """The network that puts pictures into a style."""
    return STYLES / style / "model.safetensors"


def trained(backbone: str) -> Path:
    """A backbone's weights as trained on ImageNet."""
    return BACKBONES / backbone / "weights.safetensors"


def normalized(backbone: str) -> Path:
    """A backbone's weights after normalisation to mean activations of one."""
    return BACKBONES / backbone / "normalized.safetensors"


def video_of(config: Config) -> Path:
    """The video that is stylised."""
    given = config.style.stylize.video
    return Path(given) if given else VIDEOS / "clip" / "clip.mp4"


def transfers(config: Config) -> Iterator[tuple[str, GatysConfig]]:
    """Study and settings of every picture of Version 1: sections V.B, V.C and V.D of the report."""
    transfer = config.style.transfer
    for name, study in transfer.studies.items():
        for backbone, loss, optimizer in product(study.backbones, study.losses, study.optimizers):
            yield (
                name,
                replace(
                    transfer.settings,
                    backbone=backbone,
                    criterion=loss,
                    optimizer=optimizer,
                    size_px=study.size_px,
                    iterations=study.iterations,
                ),
            )


def transfer_name(study: str, settings: GatysConfig) -> str:
    """A picture's directory below :data:`TRANSFERS`, and its run's name."""
    return f"{study}/{settings.backbone}-{settings.criterion}-{settings.optimizer}"
