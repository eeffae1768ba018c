"""The paths to which stages write their files, relative to the repository's root."""

from pathlib import Path

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
STYLE_MASKS = Path("models/style_masks")
STYLES = Path("models/styles")
LEARNED = Path("styles")
"""Networks for users' own paintings, from the command `learn-style`; no stage uses this directory."""
GRAPHS = Path("models/onnx")

SCORES = Path("results/offline_rl/scores.csv")
HELDOUT = Path("results/offline_rl/heldout.csv")
"""Losses of agents without an environment on data that they were not trained on."""
STATISTICS = Path("results/offline_rl/statistics.csv")
PROFILES = Path("results/offline_rl/profiles.csv")
ANIMATIONS = Path("results/offline_rl/animations")
EVALUATION = Path("results/offline_rl/evaluation.json")
LAYERS = Path("results/pruning/layers.csv")
SIZES = Path("results/sparse/sizes.csv")
QUANTIZED = Path("results/sparse/quantized.csv")

TRANSFERS = Path("results/style/gatys")
STUDIES = Path("results/style/studies.csv")
STYLIZED = Path("results/style/stylized")
QUALITY = Path("results/style/quality.csv")
ITERATIONS = Path("results/style/iterations.csv")
SPEED = Path("results/style/speed.csv")
PRUNED_STYLES = Path("results/style/pruning.csv")
PRUNED_PICTURES = Path("results/style/pruned")

EXPORTS = Path("results/deployment/exports.csv")
TIMINGS = Path("results/deployment/timings.csv")
CLASSIFICATION = Path("results/deployment/classification.csv")

REPORT = Path("report")
