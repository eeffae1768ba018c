from pathlib import Path

import pytest
from report_page import Reader, draw
from report_results import find, write_results

from tasks.reporting import pruned_styles
from tasks.reporting.result_tables import PRUNED_STYLES
from tasks.reporting.results import Results

NBSP = "\N{NO-BREAK SPACE}"


def said_of(root: Path, table: str) -> str:
    """The page of this table alone, in one line."""
    path = root / "run" / PRUNED_STYLES.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table)
    return Reader(draw(root / "run", root / "page")[0]).text.replace(NBSP, " ")


@pytest.fixture
def table(tmp_path):
    return (write_results(tmp_path / "whole") / PRUNED_STYLES.path).read_text()


def test_the_finding_is_the_table_in_words(table, tmp_path):
    said = said_of(tmp_path, table)
    assert "the dense one leaves 25 % (content loss 7.5)" in said
    assert "with 90 % of the weights pruned, SNIP 26 % (content loss 7.6); " in said
    assert "with 98 % of the weights pruned, SNIP 33 % (content loss 8.1) and random 50 %" in said
    assert (
        "SNIP 98 % is the fastest of these: it has 41 % of the channels, 25 % of the parameters, and" in said
    )
    assert "takes 0.08" in said
    assert "s for a picture of 512 px, in onnxruntime on 1 thread; the dense one takes 0.16 s." in said


def test_charts_pictures_and_a_table_of_every_network(tmp_path):
    found = Results(find(write_results(tmp_path)))
    rows = found.table(PRUNED_STYLES)
    charts = pruned_styles.against_sparsity(rows)
    assert [key.label for key in charts.legend] == ["SNIP", "random"]
    measures = ["style ratio by AlexNet", "content loss", "SSIM", "seconds, compacted"]
    assert [panel.title for panel in charts.panels] == measures
    pictures = pruned_styles.pictures(found, "swirls", rows)
    titles = [panel.title.replace(NBSP, " ") for panel in pictures.panels]
    assert titles == ["photo", "dense", "SNIP 90 %", "SNIP 98 %", "random 98 %"]
    assert [row["network"].replace(NBSP, " ") for row in pruned_styles.networks(rows)] == titles[1:]


def test_no_network_is_the_fastest_where_two_take_the_same_seconds(table, tmp_path):
    said = said_of(tmp_path, table.replace(",0.15\n", ",0.0801\n"))
    assert "SNIP 98 % is as fast as any of these: it has 41 %" in said


def test_what_was_not_run_says_so(table, tmp_path):
    text, _ = draw(tmp_path / "empty", tmp_path / "out")
    what = "Style networks that were pruned before training."
    assert f"{what} dvc repro writes results/style/pruning.csv." in Reader(text).text
    header, *_ = table.splitlines()  # where the configuration prunes no style
    said = said_of(tmp_path, f"{header}\n")
    assert f"{what} The configuration prunes none; to get them, put styles into style.pruning.styles" in said
    assert "writes results/style/pruning.csv" not in said
