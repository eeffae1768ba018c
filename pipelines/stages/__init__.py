"""The stages of dvc.yaml. The steps of a stage plan its cells, compute them and write their tables.

dvc.yaml is the one list of stages: it says of each what it does and, if it computes cells, names its steps in
the modules of this package. The command line and the checks of dvc.yaml are made from it.
"""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

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


def _in_file(path: Path) -> Mapping[str, Stage]:
    stages = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)["stages"]
    return {
        name: Stage(stage["desc"], tuple(stage.get("meta", {}).get("steps", ())))
        for name, stage in stages.items()
    }


STAGES = _in_file(Path(__file__).resolve().parents[2] / "dvc.yaml")
"""All stages by name, in the order of dvc.yaml."""
