from dataclasses import dataclass

import pytest

from singleshot.io.tables import concatenate, write_csv


@dataclass(frozen=True)
class Row:
    name: str
    value: float | None


def test_columns_are_fields_and_none_is_empty(tmp_path):
    write_csv(tmp_path / "rows.csv", Row, [Row("a, b", 0.1), Row("c", None)])
    assert (tmp_path / "rows.csv").read_bytes() == b'name,value\n"a, b",0.1\nc,\n'
    write_csv(tmp_path / "none.csv", Row, [])
    assert (tmp_path / "none.csv").read_text() == "name,value\n"


def cells_with(directory, *tables):
    for index, table in enumerate(tables):
        (directory / str(index)).mkdir()
        (directory / str(index) / "all.csv").write_text(table)
        yield directory / str(index)


def test_concatenation_keeps_every_digit_and_an_empty_cell(tmp_path):
    rows = 'x,y\n0.10,\n1e-05,"nan, twice"\n', "x,y\n12345678901234567890,text\n"
    concatenate(cells_with(tmp_path, *rows), tmp_path / "new" / "all.csv")
    text = 'x,y\n0.10,\n1e-05,"nan, twice"\n12345678901234567890,text\n'
    assert (tmp_path / "new" / "all.csv").read_text() == text


def test_tables_of_other_columns_are_not_concatenated(tmp_path):
    cells = cells_with(tmp_path, "x,y\n1,2\n", "y,x\n1,2\n")
    with pytest.raises(ValueError, match=r"1/all\.csv: its columns are \['y', 'x'\]"):
        concatenate(cells, tmp_path / "all.csv")
