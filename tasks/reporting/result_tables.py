"""The tables that the page is made from: where stages write them, and what the page reads of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ResultTable:
    """A table of the pipeline."""

    path: str
    columns: str
    """Columns that the page reads, separated by commas."""


SCORES = ResultTable(
    "results/offline_rl/scores.csv", "environment, algorithm, pruner, sparsity, seed, update, d4rl_score"
)
HELDOUT = ResultTable(
    "results/offline_rl/heldout.csv",
    "environment, algorithm, pruner, sparsity, seed, update, loss, value",
)
STATISTICS = ResultTable(
    "results/offline_rl/statistics.csv",
    "environment, algorithm, pruner, sparsity, seeds, score_mean, score_min, score_max, score_iqm, "
    "score_iqm_low, score_iqm_high, retention, retention_low, retention_high, evaluations, score_spread",
)
PROFILES = ResultTable(
    "results/offline_rl/profiles.csv",
    "algorithm, pruner, sparsity, score, fraction, fraction_low, fraction_high",
)
LAYERS = ResultTable(
    "results/pruning/layers.csv",
    "environment, algorithm, network, part, layer, pruner, sparsity, seed, weights_total, weights_kept",
)
SIZES = ResultTable(
    "results/sparse/sizes.csv",
    "model, network, pruner, sparsity, seed, format, bytes, entropy_bound_bytes",
)
QUANTIZED = ResultTable(
    "results/sparse/quantized.csv",
    "environment, algorithm, pruner, sparsity, seed, values, bytes, d4rl_score",
)
STUDIES = ResultTable(
    "results/style/studies.csv",
    "study, backbone, loss, optimizer, style, size_px, iteration, total_loss, seconds",
)
SPEED = ResultTable(
    "results/style/speed.csv",
    "version, backbone, size_px, device, seconds_per_image, iterations, extrapolated, threads",
)
QUALITY = ResultTable(
    "results/style/quality.csv",
    "style, method, image, style_ratio, style_ratio_vgg19, style_ratio_alexnet, ssim, lpips, "
    "warping_error_ratio",
)
TIMINGS = ResultTable(
    "results/deployment/timings.csv",
    "model, runtime, threads, batch, size_px, p50_ms, p99_ms, status, reason, precision, version, form, "
    "max_rel_error, same_choices",
)
EXPORTS = ResultTable("results/deployment/exports.csv", "model, kind, form, sparse_initializers, bytes")
CLASSIFICATION = ResultTable(
    "results/deployment/classification.csv",
    "photo, preprocessing, runtime, status, reason, rank, label, probability, same_top5_as_torch",
)
TABLES = (
    SCORES, HELDOUT, STATISTICS, PROFILES, LAYERS, SIZES, QUANTIZED, STUDIES, SPEED, QUALITY, TIMINGS,
    EXPORTS, CLASSIFICATION,
)  # fmt: skip
