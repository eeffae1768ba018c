"""Tables as CSV files: the one place that writes them."""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def write_csv(path: Path, row: "type[DataclassInstance]", rows: "Iterable[DataclassInstance]") -> None:
    """Write a table with a column for each field of the dataclass `row`; None becomes empty.

    A field that is a dataclass itself is replaced by its fields.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns_of(row))
        writer.writerows(_cells(row) for row in rows)


def columns_of(row: "type[DataclassInstance]") -> list[str]:
    """Names of the columns of a table with such rows."""
    return [
        name
        for field in fields(row)
        for name in (columns_of(field.type) if is_dataclass(field.type) else [field.name])  # type: ignore[arg-type]
    ]


def _cells(row: "DataclassInstance") -> Iterator[Any]:
    for field in fields(row):
        value = getattr(row, field.name)
        yield from _cells(value) if is_dataclass(value) else [value]  # type: ignore[arg-type]


def concatenate(
    directories: Iterable[Path],
    output: Path,
    row: "type[DataclassInstance] | None" = None,
    name: str | None = None,
) -> None:
    """Write the rows of the tables `name`, by default `output`'s, of `directories`, one after another.

    Give `row`, the rows' dataclass, if some directories may lack the table. Values are copied as text, so
    numbers keep every digit.

    Raises:
        ValueError: the columns of a part differ from those of the first.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    columns = columns_of(row) if row else None
    parts = [directory / (name or output.name) for directory in directories]
    with output.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if columns:
            writer.writerow(columns)
        for part in parts if row is None else filter(Path.exists, parts):
            with part.open(newline="") as table:
                header, *rows = csv.reader(table)
            if columns is None:
                columns = header
                writer.writerow(columns)
            elif header != columns:
                raise ValueError(f"{part}: its columns are {header}, those of {parts[0]} {columns}")
            writer.writerows(rows)
