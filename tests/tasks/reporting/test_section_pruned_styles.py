from report_results import find, write_results

from tasks.reporting.blocks import Figure, NotRun, Table, Text
from tasks.reporting.results import Results
from tasks.reporting.section_pruned_styles import pruned_styles

NBSP = "\N{NO-BREAK SPACE}"


def test_the_finding_is_the_table_in_words(tmp_path):
    text, *_ = pruned_styles(Results(find(write_results(tmp_path))))
    assert isinstance(text, Text)
    said = text.text.replace(NBSP, " ")
    assert "the dense one leaves 30 % (content loss 7.5)" in said
    assert "with 90 % of the weights pruned, SNIP 32 % (content loss 7.6); " in said
    assert "with 98 % of the weights pruned, SNIP 41 % (content loss 8.1) and random 55 %" in said
    assert (
        "SNIP 98 % is the fastest of these: it has 41 % of the channels, 25 % of the parameters, and" in said
    )
    assert "takes 0.08" in said
    assert "s for a picture of 512 px, in onnxruntime on 1 thread; the dense one takes 0.16 s." in said


def test_charts_pictures_and_a_table_of_every_network(tmp_path):
    _, charts, pictures, table = pruned_styles(Results(find(write_results(tmp_path))))
    assert isinstance(charts, Figure)
    assert isinstance(pictures, Figure)
    assert isinstance(table, Table)
    assert [key.label for key in charts.legend] == ["SNIP", "random"]
    measures = ["style ratio", "content loss", "SSIM", "seconds, compacted"]
    assert [panel.title for panel in charts.panels] == measures
    titles = [panel.title.replace(NBSP, " ") for panel in pictures.panels]
    assert titles == ["photo", "dense", "SNIP 90 %", "SNIP 98 %", "random 98 %"]
    assert [row[1].replace(NBSP, " ") for row in table.rows] == titles[1:]


def test_no_network_is_the_fastest_where_two_take_the_same_seconds(tmp_path):
    path = write_results(tmp_path) / "results/style/pruning.csv"
    path.write_text(path.read_text().replace(",0.15\n", ",0.0801\n"))
    text, *_ = pruned_styles(Results({"results/style/pruning.csv": path}))
    assert "SNIP 98 % is as fast as any of these: it has 41 %" in text.text.replace(NBSP, " ")


def test_what_was_not_run_says_so(tmp_path):
    (block,) = pruned_styles(Results({}))
    assert isinstance(block, NotRun)
    assert "`dvc repro` writes results/style/pruning.csv" in block.how
    header, *_ = (write_results(tmp_path) / "results/style/pruning.csv").read_text().splitlines()
    (tmp_path / "pruning.csv").write_text(f"{header}\n")  # where the configuration prunes no style
    (block,) = pruned_styles(Results({"results/style/pruning.csv": tmp_path / "pruning.csv"}))
    assert isinstance(block, NotRun)
    assert "style.pruning.styles" in block.how
    assert "writes" not in block.how
