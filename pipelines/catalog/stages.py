"""The stages of dvc.yaml, which describes each in one sentence. Imports nothing heavy."""

from collections.abc import Mapping
from pathlib import Path

import yaml

STAGES: Mapping[str, str] = {
    name: stage["desc"]
    for name, stage in yaml.load(
        (Path(__file__).resolve().parents[2] / "dvc.yaml").read_text("utf-8"), yaml.CSafeLoader
    )["stages"].items()
}
"""What each stage does, by name, in the order of dvc.yaml."""

WITH_CELLS = {name: about for name, about in STAGES.items() if name not in {"packages", "config", "register"}}
"""The stages that compute cells. A module of `pipelines.stages` has the stage's name, and its `STEPS`."""
