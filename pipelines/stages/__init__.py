"""The stages of dvc.yaml, and the paths of the files that they write.

dvc.yaml is the one list of stages: it says of each what it does and, if it computes cells, names its steps in
the modules of this package, which plan the cells, compute them and write their tables. The command line and
the checks of dvc.yaml are made from it.
"""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from singleshot.io import folders
from tasks.reporting import results

if TYPE_CHECKING:
    from pipelines.engine.stage import Step


@dataclass(frozen=True)
class Stage:
    """A stage of dvc.yaml."""

    about: str
    """What it does, in one sentence."""
    steps: tuple[str, ...]
    """Its steps, each as `module.function`; none if it computes no cells."""

    @property
    def modules(self) -> set[str]:
        """The modules of its steps."""
        return {f"{__name__}.{step.partition('.')[0]}" for step in self.steps}

    def load(self) -> "list[Step]":
        """Import its steps."""
        return [pkgutil.resolve_name(f"{__name__}.{step}") for step in self.steps]


_FILE = Path(__file__).resolve().parents[2] / "dvc.yaml"
STAGES: Mapping[str, Stage] = {
    name: Stage(stage["desc"], tuple(stage.get("meta", {}).get("steps", ())))
    for name, stage in yaml.load(_FILE.read_text("utf-8"), yaml.CSafeLoader)["stages"].items()
}
"""All stages by name, in the order of dvc.yaml."""

EXPERTS = Path("experts")

DATASETS = Path("data/offline_rl")
IMAGES = Path("data/images")
PHOTOS = IMAGES / "photos"
"""Photos that styles are trained on."""
SAMPLES = IMAGES / "samples"
"""Photos that are stylised and measured."""
PAINTINGS = folders.PAINTINGS

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
    return STYLES / style / folders.MODEL


def backbone(name: str) -> Path:
    """A backbone's weights as trained on ImageNet."""
    return BACKBONES / name / "weights.safetensors"


def normalized_backbone(name: str) -> Path:
    """A backbone's weights after normalisation to mean activations of one."""
    return BACKBONES / name / "normalized.safetensors"
