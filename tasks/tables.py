"""Tables as CSV files: the one place that writes them."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def write_csv(path: Path, row: "type[DataclassInstance]", rows: "Iterable[DataclassInstance]") -> None:
    """Write a table with a column named after each field of the dataclass `row`; None becomes empty."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([column.name for column in fields(row)])
        writer.writerows(astuple(row) for row in rows)


def concatenate(parts: Sequence[Path], output: Path, row: "type[DataclassInstance] | None" = None) -> None:
    """Write the rows of `parts`, tables with the same columns, one after another.

    If there may be no part, `row` is the dataclass of their rows. Values are copied as text: numbers keep
    every digit.

    Raises:
        ValueError: the columns of a part differ from those of the first.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    columns = [column.name for column in fields(row)] if row else None
    with output.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if columns:
            writer.writerow(columns)
        for part in parts:
            with part.open(newline="") as table:
                header, *rows = csv.reader(table)
            if columns is None:
                columns = header
                writer.writerow(columns)
            elif header != columns:
                raise ValueError(f"{part}: its columns are {header}, those of {parts[0]} {columns}")
            writer.writerows(rows)
