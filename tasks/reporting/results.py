"""The files that a run writes, declared once, and read for the page.

A missing or empty file is an empty table, not an error.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from singleshot.errors import explained
from singleshot.io.tables import columns_of

if TYPE_CHECKING:
    import pandas  # the command line lists its commands from here, and needs none


@dataclass(frozen=True)
class ResultTable:
    """A table of the pipeline."""

    path: str
    row: str
    """The dataclass of its rows, `module:Name`; imported only for an empty table, as it imports much else."""

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        module, _, name = self.row.partition(":")
        return columns_of(getattr(import_module(module), name))


SCORES = ResultTable("results/offline_rl/scores.csv", "tasks.train_agents:ScoreRow")
HELDOUT = ResultTable("results/offline_rl/heldout.csv", "tasks.train_agents:HeldoutRow")
STATISTICS = ResultTable("results/offline_rl/statistics.csv", "tasks.reporting.scores:StatisticsRow")
LAYERS = ResultTable("results/pruning/layers.csv", "tasks.prune_agent:LayerRow")
SIZES = ResultTable("results/sparse/sizes.csv", "tasks.measure_sizes:SizeRow")
QUANTIZED = ResultTable("results/sparse/quantized.csv", "tasks.quantize_agent:QuantizedRow")
STUDIES = ResultTable("results/style/studies.csv", "tasks.transfer_style:HistoryRow")
SPEED = ResultTable("results/style/speed.csv", "tasks.measure_styles:SpeedRow")
QUALITY = ResultTable("results/style/quality.csv", "tasks.measure_styles:QualityRow")
TIMINGS = ResultTable("results/deployment/timings.csv", "tasks.benchmark:TimingRow")
CLASSIFICATION = ResultTable("results/deployment/classification.csv", "tasks.benchmark:AnswerRow")
TABLES = (
    SCORES, HELDOUT, STATISTICS, LAYERS, SIZES, QUANTIZED, STUDIES, SPEED, QUALITY, TIMINGS, CLASSIFICATION,
)  # fmt: skip
ANIMATIONS = "results/offline_rl/animations/*/*/"
"""Directories with `animation.mp4` and a picture of it, `still.jpg`, for each environment and algorithm."""
PICTURES = (
    f"{ANIMATIONS}animation.mp4",
    f"{ANIMATIONS}still.jpg",
    "results/style/gatys/*/*/*.png",
    "results/style/gatys/*/*/summary.json",
    "examples/clip.mp4",
    "results/style/stylized/*/clip.mp4",
    "results/style/stylized/*/large/*.jpg",
    "results/style/stylized/*/photos/*.jpg",
)
PROVENANCE = "results/provenance/*/*.json"
FILES = (*(table.path for table in TABLES), *PICTURES, PROVENANCE)
"""All files that the page is made from, as glob patterns relative to the repository's root."""


@dataclass(frozen=True)
class Results:
    """A run's files by their path from the repository's root."""

    files: Mapping[str, Path]

    def table(self, source: ResultTable) -> "pandas.DataFrame":
        """Read a table; it has no rows if the file is missing or empty.

        Raises:
            UserError: the file is not CSV.
        """
        import pandas

        path = self.files.get(source.path)
        if path is None or not path.read_bytes().strip():
            return pandas.DataFrame(columns=source.columns)
        with explained(f"{source.path}: not CSV", "make it again with `dvc repro -f`", ValueError):
            return pandas.read_csv(path)

    def find(self, pattern: str) -> dict[str, Path]:
        """The files whose path matches `pattern`, sorted by path. A `*` matches no slash."""
        return {name: path for name, path in sorted(self.files.items()) if PurePosixPath(name).match(pattern)}

    def records(self, pattern: str) -> list[dict[str, Any]]:
        """Read the JSON files whose path matches `pattern`. Raises UserError if a file is not JSON."""
        found = []
        for name, path in self.find(pattern).items():
            with explained(f"{name}: not JSON", "remove it, then run `dvc repro`", ValueError):
                found.append(json.loads(path.read_text("utf-8")))
        return found
