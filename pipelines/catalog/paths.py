"""The paths to which stages write their files, relative to the repository's root."""

from pathlib import Path

from tasks.reporting import result_tables

EXPERTS = Path("experts")

DATASETS = Path("data/offline_rl")
IMAGES = Path("data/images")
PHOTOS = IMAGES / "photos"
"""Photos that styles are trained on."""
SAMPLES = IMAGES / "samples"
"""Photos that are stylised and measured."""
PAINTINGS = IMAGES / "paintings"
VIDEOS = Path("data/videos")

MASKS = Path("models/masks")
AGENTS = Path("models/agents")
BACKBONES = Path("models/backbones")
STYLES = Path("models/styles")
LEARNED = Path("styles")
"""Networks for users' own paintings, from the command `learn-style`; no stage uses this directory."""
GRAPHS = Path("models/onnx")

SCORES = Path(result_tables.SCORES.path)
HELDOUT = Path(result_tables.HELDOUT.path)
"""Losses of agents without an environment on data that they were not trained on."""
STATISTICS = Path(result_tables.STATISTICS.path)
PROFILES = Path(result_tables.PROFILES.path)
ANIMATIONS = Path("results/offline_rl/animations")
EVALUATION = Path("results/offline_rl/evaluation.json")
LAYERS = Path(result_tables.LAYERS.path)
SIZES = Path(result_tables.SIZES.path)
QUANTIZED = Path(result_tables.QUANTIZED.path)

TRANSFERS = Path("results/style/gatys")
STUDIES = Path(result_tables.STUDIES.path)
STYLIZED = Path("results/style/stylized")
QUALITY = Path(result_tables.QUALITY.path)
ITERATIONS = Path("results/style/iterations.csv")
SPEED = Path(result_tables.SPEED.path)

EXPORTS = Path(result_tables.EXPORTS.path)
TIMINGS = Path(result_tables.TIMINGS.path)
CLASSIFICATION = Path(result_tables.CLASSIFICATION.path)

REPORT = Path("report")
