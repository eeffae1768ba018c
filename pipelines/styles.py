"""Where the stages of style transfer meet, and what they call things."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from pipelines.engine.config import Config
from tasks.pruning.variant import DENSE, variant_name
from tasks.style.gatys import GatysConfig
from tasks.style.johnson import TrainStyleParams

IMAGES = Path("data/images")
PHOTOS = IMAGES / "photos"
"""What styles are trained on."""
SAMPLES = IMAGES / "samples"
"""What is stylised and measured."""
PAINTINGS = IMAGES / "paintings"
VIDEOS = Path("data/videos")
BACKBONES = Path("models/backbones")
STYLES = Path("models/styles")
STYLE_MASKS = Path("models/style_masks")
TRANSFERS = Path("results/style/gatys")
STYLIZED = Path("results/style/stylized")
PRUNED_PICTURES = Path("results/style/pruned")


def painting_of(style: str) -> Path:
    """The picture that a style is learned from."""
    return PAINTINGS / style / "painting.png"


def model_of(style: str) -> Path:
    """The network that puts pictures into a style; of a pruned one, by its name."""
    return STYLES / style / "model.safetensors"


def training_of(config: Config, style: str) -> TrainStyleParams:
    """How a style's network is trained, pruned or not."""
    training = config.style.training
    weight = training.style_weights.get(style, training.johnson.style_weight)
    return TrainStyleParams(style, replace(training.johnson, style_weight=weight), training.seed)


def training_inputs(style: str) -> dict[str, Path]:
    """What it is trained from."""
    return {"photos": PHOTOS, "painting": painting_of(style), "backbone": trained("vgg16")}


def style_tags(style: str, pruner: str = DENSE, sparsity: float = 0.0) -> dict[str, str]:
    """What to filter a network's runs by in MLflow."""
    return {"style": style, "pruner": pruner, "sparsity": f"{sparsity:g}"}


@dataclass(frozen=True)
class PrunedStyle:
    """A style's network that is pruned before it is trained."""

    style: str
    pruner: str
    sparsity: float

    @property
    def variant(self) -> str:
        """How it was pruned, in a word: `snip-0.98`."""
        return variant_name(self.pruner, self.sparsity)

    @property
    def name(self) -> str:
        """Its directory below :data:`STYLES` and :data:`STYLE_MASKS`, and its runs' name."""
        return f"{self.style}/{self.variant}"

    @property
    def mask(self) -> Path:
        """The file of its mask."""
        return STYLE_MASKS / self.name / "mask.safetensors"

    @property
    def tags(self) -> dict[str, str]:
        """What to filter its runs by in MLflow."""
        return style_tags(self.style, self.pruner, self.sparsity)


def pruned_styles(config: Config) -> Iterator[PrunedStyle]:
    """Every pruned network of a style, in the order of the configuration."""
    pruning = config.style.pruning
    for style in dict.fromkeys(pruning.styles):
        for pruner, sparsities in pruning.sparsities.items():
            yield from (PrunedStyle(style, pruner, sparsity) for sparsity in dict.fromkeys(sparsities))


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
    """Study and settings of every picture by optimisation: sections V.B, V.C and V.D of the report."""
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
