"""CSV results: the one place that writes them."""

from collections.abc import Sequence
from pathlib import Path

import pandas


def concatenate(parts: Sequence[Path], output: Path) -> None:
    """Write the rows of `parts`, tables of the same columns, one after another."""
    # As text: numbers stay as they were written.
    table = pandas.concat([pandas.read_csv(part, dtype=str, keep_default_na=False) for part in parts])
    output.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(output, index=False)
