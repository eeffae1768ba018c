"""The stages of dvc.yaml, and the paths to which they write their files. Imports nothing heavy."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from singleshot import folders
from tasks.reporting import results

STAGES: Mapping[str, str] = {
    name: stage["desc"]
    for name, stage in yaml.load(
        (Path(__file__).resolve().parents[2] / "dvc.yaml").read_text("utf-8"), yaml.CSafeLoader
    )["stages"].items()
}
"""What each stage does, by name, in the order of dvc.yaml."""

WITH_CELLS = {
    "data": "offline_rl",
    "pictures": "style",
    "agents": "offline_rl",
    "measure_agents": "offline_rl",
    "styles": "style",
    "export": "deployment",
    "measure_styles": "style",
    "benchmark": "deployment",
    "report": "report",
}
"""The stages that compute cells, each with the module of `pipelines.stages` whose `STEPS` has its steps."""

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
