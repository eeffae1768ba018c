"""The paths to which stages write their files. Imports nothing heavy."""

from pathlib import Path

from singleshot import folders
from tasks.reporting import results

EXPERTS = Path("experts")

DATASETS = Path("data/offline_rl")
IMAGES = Path("data/images")
PHOTOS = IMAGES / "photos"
"""Photos that styles are trained on."""
SAMPLES = IMAGES / "samples"
"""Photos that are stylised and measured."""
PAINTINGS = folders.PAINTINGS
VIDEOS = Path("data/videos")

MASKS = Path("models/masks")
AGENTS = Path("models/agents")
BACKBONES = Path("models/backbones")
STYLES = folders.TRAINED
GRAPHS = folders.GRAPHS

SCORES = Path(results.SCORES.path)
HELDOUT = Path(results.HELDOUT.path)
"""Losses of agents without an environment on data that they were not trained on."""
STATISTICS = Path(results.STATISTICS.path)
ANIMATIONS = Path("results/offline_rl/animations")
EVALUATION = Path("results/offline_rl/evaluation.json")
LAYERS = Path(results.LAYERS.path)
SIZES = Path(results.SIZES.path)
QUANTIZED = Path(results.QUANTIZED.path)

TRANSFERS = Path("results/style/gatys")
STUDIES = Path(results.STUDIES.path)
STYLIZED = Path("results/style/stylized")
QUALITY = Path(results.QUALITY.path)
ITERATIONS = Path("results/style/iterations.csv")
SPEED = Path(results.SPEED.path)

EXPORTS = Path("results/deployment/exports.csv")
TIMINGS = Path(results.TIMINGS.path)
CLASSIFICATION = Path(results.CLASSIFICATION.path)

REPORT = Path("report")


def painting(style: str) -> Path:
    """The picture that a style is learned from."""
    return PAINTINGS / style / "painting.png"


def style_network(style: str) -> Path:
    """A style's trained network."""
    return STYLES / style / "model.safetensors"


def backbone(name: str) -> Path:
    """A backbone's weights as trained on ImageNet."""
    return BACKBONES / name / "weights.safetensors"


def normalized_backbone(name: str) -> Path:
    """A backbone's weights after normalisation to mean activations of one."""
    return BACKBONES / name / "normalized.safetensors"
