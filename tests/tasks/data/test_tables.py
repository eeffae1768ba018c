from dataclasses import dataclass

from tasks.data.tables import write_csv


@dataclass(frozen=True)
class Row:
    name: str
    value: float | None


def test_columns_are_fields_and_none_is_empty(tmp_path):
    write_csv(tmp_path / "rows.csv", Row, [Row("a, b", 0.1), Row("c", None)])
    assert (tmp_path / "rows.csv").read_bytes() == b'name,value\n"a, b",0.1\nc,\n'
    write_csv(tmp_path / "none.csv", Row, [])
    assert (tmp_path / "none.csv").read_text() == "name,value\n"
