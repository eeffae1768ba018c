"""Where the stages of style transfer meet, and what they call things."""

from pathlib import Path

from pipelines.engine.config import Config

IMAGES = Path("data/images")
PHOTOS = IMAGES / "photos"
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
