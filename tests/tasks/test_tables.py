from dataclasses import dataclass

import pytest

from tasks.tables import concatenate, write_csv


@dataclass(frozen=True)
class Row:
    name: str
    value: float | None


def test_columns_are_fields_and_none_is_empty(tmp_path):
    write_csv(tmp_path / "rows.csv", Row, [Row("a, b", 0.1), Row("c", None)])
    assert (tmp_path / "rows.csv").read_bytes() == b'name,value\n"a, b",0.1\nc,\n'
    write_csv(tmp_path / "none.csv", Row, [])
    assert (tmp_path / "none.csv").read_text() == "name,value\n"


def test_concatenation_keeps_every_digit_and_an_empty_cell(tmp_path):
    (tmp_path / "a.csv").write_text('x,y\n0.10,\n1e-05,"nan, twice"\n')
    (tmp_path / "b.csv").write_text("x,y\n12345678901234567890,text\n")
    concatenate([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "new" / "all.csv")
    assert (tmp_path / "new" / "all.csv").read_text() == (
        'x,y\n0.10,\n1e-05,"nan, twice"\n12345678901234567890,text\n'
    )


def test_tables_of_other_columns_are_not_concatenated(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("y,x\n1,2\n")
    with pytest.raises(ValueError, match=r"b\.csv: its columns are \['y', 'x'\]"):
        concatenate([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "all.csv")
