"""The files that a run writes, read for the page. A missing or empty file is an empty table, not an error."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pandas

from singleshot.errors import UserError
from tasks.reporting.result_tables import TABLES, ResultTable

STUDY = ResultTable("docs/study/claims.csv", "claim, compared, value, low, high, p_holm, seeds")
"""The study's claims, which the page shows beside the run's results."""
ANIMATIONS = "results/offline_rl/animations/*/*/"
"""Directories with `animation.mp4` and a picture of it, `still.jpg`, for each environment and algorithm."""
PICTURES = (
    f"{ANIMATIONS}animation.mp4",
    f"{ANIMATIONS}still.jpg",
    "results/style/gatys/*/*/*.png",
    "results/style/gatys/*/*/summary.json",
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
