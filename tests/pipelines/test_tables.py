from pipelines.engine.tables import concatenate


def test_concatenation_keeps_every_digit_and_an_empty_cell(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n0.10,\n1e-05,nan\n")
    (tmp_path / "b.csv").write_text("x,y\n12345678901234567890,text\n")
    concatenate([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "new" / "all.csv")
    assert (tmp_path / "new" / "all.csv").read_text() == "x,y\n0.10,\n1e-05,nan\n12345678901234567890,text\n"
