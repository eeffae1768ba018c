"""The files that a run writes, read for the page. A missing or empty file is an empty table, not an error."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pandas

from singleshot.errors import UserError


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
PRUNED_STYLES = ResultTable(
    "results/style/pruning.csv",
    "style, pruner, sparsity, weights_kept, channels_total, channels_kept, parameters, style_ratio, "
    "style_ratio_alexnet, content_loss, ssim, lpips, size_px, threads, torch_seconds, onnxruntime_seconds, "
    "torch_compacted_seconds, onnxruntime_compacted_seconds",
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
    SCORES, HELDOUT, STATISTICS, PROFILES, LAYERS, SIZES, QUANTIZED, STUDIES, SPEED, QUALITY, PRUNED_STYLES,
    TIMINGS, EXPORTS, CLASSIFICATION,
)  # fmt: skip
STUDY = ResultTable("docs/study/claims.csv", "measured, agents, normalize_states, masks, value, seeds")
"""The study's findings, which the page shows beside the run's."""
ANIMATIONS = "results/offline_rl/animations/*/*/"
"""Directories with `animation.mp4` and a picture of it, `still.jpg`, for each environment and algorithm."""
PICTURES = (
    f"{ANIMATIONS}animation.mp4",
    f"{ANIMATIONS}still.jpg",
    "results/style/gatys/*/*/*.png",
    "results/style/gatys/*/*/summary.json",
    "results/style/pruned/*/*.png",
    "results/style/stylized/*/large/*.jpg",
    "results/style/stylized/*/photos/*.jpg",
    "models/styles/*/contact_sheet.jpg",
)
PROVENANCE = "results/provenance/*/*.json"
FILES = (*(table.path for table in TABLES), *PICTURES, PROVENANCE, STUDY.path)
"""All files that the page is made from, as glob patterns relative to the repository's root."""


@dataclass(frozen=True)
class Results:
    """A run's files by their path from the repository's root."""

    files: Mapping[str, Path]

    def table(self, source: ResultTable) -> pandas.DataFrame:
        """Read a table; it has no rows if the file is missing or empty.

        Raises:
            UserError: the file is not CSV, or lacks a column.
        """
        columns = source.columns.split(", ")
        path = self.files.get(source.path)
        if path is None or not path.read_bytes().strip():
            return pandas.DataFrame(columns=columns)
        try:
            return pandas.read_csv(path)[columns]
        except (ValueError, KeyError) as error:
            reason = str(error).strip("'\"")
            raise UserError(f"{source.path}: {reason}; make it again with `dvc repro -f`") from error

    def find(self, pattern: str) -> dict[str, Path]:
        """The files whose path matches `pattern`, sorted by path. A `*` matches no slash."""
        return {name: path for name, path in sorted(self.files.items()) if PurePosixPath(name).match(pattern)}

    def records(self, pattern: str) -> list[dict[str, Any]]:
        """Read the JSON files whose path matches `pattern`.

        Raises:
            UserError: a file is not JSON.
        """
        found = []
        for name, path in self.find(pattern).items():
            try:
                found.append(json.loads(path.read_text("utf-8")))
            except ValueError as error:
                raise UserError(f"{name}: not JSON ({error}); remove it, then run `dvc repro`") from error
        return found
