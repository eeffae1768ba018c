"""Tables as CSV files."""

import csv
from collections.abc import Iterable
from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def write_csv(path: Path, row: "type[DataclassInstance]", rows: "Iterable[DataclassInstance]") -> None:
    """Write a column for each field of the dataclass `row`, under its name; None is empty."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.name for column in fields(row)])
        writer.writerows(astuple(row) for row in rows)
