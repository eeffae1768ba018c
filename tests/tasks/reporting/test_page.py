import base64
import re
import shutil
from itertools import pairwise

import numpy as np
import pandas
import pytest
import report_results
import torch
from report_results import draw, rows_of, shown

from singleshot.errors import UserError
from singleshot.io.images import encode_jpeg
from tasks.reporting import look, provenance, results
from tasks.reporting.look import Chart, Figure, Panel
from tasks.reporting.results import Results

TABLES = [source for source in results.TABLES if source is not results.HELDOUT]
"""Those of a run whose agents have environments."""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return report_results.write_results(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    return tmp_path_factory.mktemp("page") / "out"


@pytest.fixture(scope="module")
def drawn(small, output):
    return draw(small, output)


@pytest.fixture
def run(small, tmp_path):
    """A copy of the run, to be changed."""
    return shutil.copytree(small, tmp_path / "run")


@pytest.fixture
def no_charts(monkeypatch):
    """Charts take seconds; what they show is tested beside what draws them."""
    panels = [Panel("data:image/svg+xml;base64,", "a chart of these rows")]
    monkeypatch.setattr(
        Chart, "figure", lambda _chart, rows, keys, by=(): Figure(panels if len(rows) else [])
    )


def test_the_same_files_give_the_same_bytes_wherever_they_are(drawn, tmp_path):
    copied = report_results.write_results(tmp_path / "elsewhere")
    assert draw(copied, tmp_path / "out") == drawn


def test_everything_is_in_the_page_itself(drawn):
    text, metrics = drawn
    addresses = re.findall(r' (?:src|href|srcset|data|poster)="([^"]*)"', text)
    assert {address[:5] for address in addresses if not address.startswith("#")} == {"data:"}
    assert "url(" not in text
    assert "@import" not in text
    assert metrics["not_run"] == 0
    assert metrics["tables"] == text.count("<table>")
    assert "Not run in this profile" not in text
    assert not re.search(r"\bnan\b|None|Traceback", shown(text))


def test_agents_in_motion_wait_for_the_reader(drawn):
    *videos, film, stylised = re.findall(r"<video[^>]*>", drawn[0])
    assert 'aria-label="Moving: swirls."' in stylised
    assert 'aria-label="Moving: the film."' in film
    for video, environment in zip(videos, ("HalfCheetah", "Hopper"), strict=True):
        (content,) = re.findall('src="data:video/mp4;base64,([^"]*)', video)
        assert base64.b64decode(content) == f"{environment} in motion".encode()
        assert video.endswith("controls muted loop playsinline>")  # the script plays it
        assert 'poster="data:image/jpeg' in video


def test_the_page_opens_with_the_verdict_a_film_and_three_numbers(drawn, no_charts, tmp_path):
    before, *_ = drawn[0].partition("<nav")
    assert (before.count("<video"), before.count("<table")) == (1, 0)
    # 10 · 0.95 points less; 1 / (0.05 · 0.9) of the bytes; half of the milliseconds
    assert re.findall(r'class="value">([^<]*)<', before) == ["−9.5 points", "22×", "2.0×"]
    assert "This run does not decide whether agents keep the dense score when SNIP prunes 95\u00a0%" in before
    assert "Mean D4RL scores of all seeds: dense 50, SNIP 35, GraSP 28." in shown(before)
    text, _ = draw(report_results.write_results(tmp_path / "run", seeds=(0, 1, 2)), tmp_path / "out")
    assert "95\u00a0% interval: −9.5 to −9.5, 3 seeds" in text
    assert "Agents keep the dense score to within 10 points when SNIP" in text


def test_every_chart_and_table_links_to_its_csv(drawn, small):
    embedded = dict(re.findall(r'id="csv-([^"]+)" href="data:text/csv;base64,([^"]+)"', drawn[0]))
    assert set(re.findall(r'href="#csv-([^"]+)"', drawn[0])) == set(embedded)
    files = {path.name: path.read_bytes() for source in TABLES for path in [small / source.path]}
    assert {name: base64.b64decode(content) for name, content in embedded.items()} == files


def test_charts_are_files_named_by_the_number_of_their_figure(drawn, output):
    page = drawn[0].partition("<nav")[2]
    numbered = re.findall(r"<figcaption><b>Figure (\w+)\.", page)
    closed = re.findall(r"<b>Figure (\w+)\.", "".join(re.findall("(?s)<details>.*?</details>", page)))
    assert closed == [f"D{n}" for n in range(1, len(closed) + 1)] != []
    seen = [each for each in numbered if each not in closed]
    assert seen == [str(n) for n in range(1, len(seen) + 1)]  # those that nobody opens leave no gap
    files = {path.name: path.read_bytes() for path in (output / "figures").iterdir()}
    (chart,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page.partition("<b>Figure 1.</b>")[0])
    assert files["figure-01.svg"] == base64.b64decode(chart)
    assert {re.match(r"figure-0?(D?\d+)", name)[1] for name in files} <= set(numbered)
    type_sizes = {float(size) for file in files.values() for size in re.findall(rb"([\d.]+)px", file)}
    assert min(type_sizes) == look.LOOK["font.size"]  # 11 px where a chart is as wide as a phone's page


def test_a_screen_reader_finds_its_way(drawn):
    pictures = re.findall(r"<img[^>]*>", drawn[0])
    assert all(re.search('alt="[^"]{10,}"', picture) for picture in pictures)
    headings = [int(level) for level in re.findall(r"<h([1-6])", drawn[0])]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(headings))


def test_answers_come_in_order_and_are_the_tables(drawn):
    found = re.findall(r'(?s)<p class="answer">(.*?)</p>', drawn[0])
    # 16 + 4 cells of 90 seconds each stage; SNIP's score at 0.95 is 50 - 2 · 7.5 of 50; COO at 95 %: 5 · 0.05
    # = a quarter; packed: 0.05 · 0.9
    expected = [
        (
            "20 computations (cells) of 2 steps",
            "3 minutes in all",
            "(2 cores, 23.5 GB, no GPU)",
            "0123456789",
        ),
        ("BCQ agents keep 70\u00a0% of the dense agents' score, which is 50, when SNIP",),
        ("4.0 times fewer bytes", "(the paper: 4)", "22 times fewer", "1 state 2.0 times as fast (2.0"),
        ("62\u00a0% (swirls)",),
        ("openvino-bf16 is 3.0 times as fast, onnxruntime is 2.0 times as fast, in",),
    ]
    for answer, words in zip(found, expected, strict=False):
        assert all(each in shown(answer) for each in words), shown(answer)


def test_the_tables_are_the_csv_files_beside_the_reports(drawn, small):
    text, _ = drawn
    rows = rows_of(text, "method", "network", "ours, MB", "paper, MB", "ours / paper")
    assert len(rows) == 12
    assert ["Dense Model", "vae", "4.763", "4.7621", "1.00"] in rows
    # 5 · 0.05 of 0.529 MB as COO tensors
    assert ["SNIP (95% sparse)", "actor", "0.1322", "0.14297", "0.925"] in rows
    rows = rows_of(text, "px", "method", "ours, s", "paper, s", "ours / paper")
    assert ["256", "Version 1, AlexNet", "50.0", "9.15", "5.46", "500", "458"] in rows
    assert ["256", "Version 1, VGG-19", "250", "23.0", "10.9", "2,500", "1,150"] in rows
    assert ["256", "Version 2", "0.100", "0.0200", "5.00", "1.00", "1.00"] in rows
    assert ["48", "Version 2", "0.0100", "–", "–", "1.00", "–"] in rows  # the report has no such pictures
    # Masked policies take 1 / (1 + i) ms a state on runtime i, styles 120 / (1 + i).
    timed = rows_of(text, "network", "form", "input", "torch", "onnxruntime", "openvino-bf16")
    assert [report_results.AGENT, "masked", "batch 256, 1 thread", "256", "128", "85.3"] in timed
    assert ["styles/swirls", "dense", "batch 1, 256 px, 1 thread", "120", "60.0", "40.0"] in timed
    # 400 and 500 of 129,200 weights in every row: a sentence instead of a table.
    assert "Each part of an agent keeps 0.348 % of its weights." in shown(text)
    statistics = pandas.read_csv(small / results.STATISTICS.path)
    rows = rows_of(text, "environment", "pruner", "sparsity", "score")  # all are of BCQ, and of two seeds
    assert [float(row[3]) for row in rows] == pytest.approx(statistics["score_mean"].tolist(), rel=5e-3)
    quality = rows_of(text, "picture", "style ratio: VGG-16", "VGG-19", "AlexNet")
    assert quality[1][1:] == ["0.310", "0.400", "0.620", "0.400", "0.500"]
    assert rows_of(text, "preparation", "most probable")[1][1] == "Egyptian cat"
    compilers = rows_of(text, "the report's (section)", "successor")
    bf16 = ["OpenVINO, which absorbed nGraph", "openvino-bf16", "1.0", "5 of 5", "3.0 times as fast"]
    assert ["nGraph (3.4)", *bf16] in [row[:6] for row in compilers]
    assert "unavailable: not installed" in [row[-1] for row in compilers]


@pytest.mark.parametrize("half", [0, 1])
def test_tables_that_are_not_there_are_said_to_be_missing(run, no_charts, tmp_path, half):
    """Every second one, so that each figure is once without its table and with others; once pictures, too."""
    for source in TABLES[half::2]:
        (run / source.path).unlink()
    for pattern in (*results.PICTURES, results.PROVENANCE) if half else ():
        for path in run.glob(pattern):
            path.unlink()
    text, metrics = draw(run, tmp_path / "out")
    assert metrics["not_run"] > 0
    _, missing = text.split("<h2>Not run in this profile</h2>")
    for source in TABLES[half::2]:
        assert f"<code>dvc repro</code> writes {source.path}" in missing
    assert not re.search(r"\bnan\b|None|Traceback", shown(text))


def test_nothing_at_all_makes_a_page_that_says_so(tmp_path):
    text, metrics = draw(tmp_path / "empty", tmp_path / "out")
    assert (metrics["figures"], metrics["tables"]) == (0, 1)  # what to do next
    headings = ["Contents", "What was run?", "Next", "Not run in this profile"]
    assert re.findall("<h2>(.*?)</h2>", text) == headings
    assert text.count("<li>", text.index('id="not-run"')) == metrics["not_run"]


@pytest.mark.parametrize("source", results.TABLES, ids=lambda source: source.path)
def test_an_empty_table_is_as_good_as_none(tmp_path, source):
    """It has the columns of the rows that are written to it, and so all that the page reads."""
    (tmp_path / "table.csv").touch()
    for found in (Results({source.path: tmp_path / "table.csv"}), Results({})):
        table = found.table(source)
        assert table.empty
        assert list(table) == source.columns


def test_cells_of_several_kinds_of_processor_are_told_apart():
    machine = {"processor": "A", "instructions": "AVX2", "cores": 2, "gpu": None}
    for other, told in (({"cores": 64}, False), ({"instructions": "AVX512"}, True), ({"gpu": "G"}, True)):
        mixed = provenance.mixed_processors([{"stage": "train", "machines": [machine, machine | other]}])
        assert list(mixed) == ["train"] * told


@pytest.mark.parametrize(
    ("path", "change", "named"),
    [
        (results.SPEED.path, lambda text: text.replace("size_px", "size"), r"size_px.*dvc repro -f"),
        (results.SPEED.path, lambda text: f'{text}"unclosed', r"speed\.csv.*dvc repro -f"),
        ("results/provenance/train/train.json", lambda _: '{"stage": ', r"train/train\.json: not JSON"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it_or_the_column(
    run, no_charts, tmp_path, path, change, named
):
    (run / path).write_text(change((run / path).read_text()))
    with pytest.raises(UserError, match=named):
        draw(run, tmp_path / "out")


def test_names_are_text_never_markup_and_large_pictures_are_scaled_down(run, no_charts, tmp_path):
    table = run / results.CLASSIFICATION.path
    table.write_text(table.read_text().replace("tiger cat", "<script>alert(1)</script>"))
    noise = torch.from_numpy(np.random.default_rng(0).random((3, 900, 1600), dtype=np.float32))
    for path in run.rglob("*.jpg"):
        path.write_bytes(encode_jpeg(noise))
    text, _ = draw(run, tmp_path / "out", profile="<b>small</b>")
    assert "&lt;script&gt;alert(1)" in text
    assert text.count("<script>") == 1
    assert "<b>small" not in text
    assert len(text) < 6_000_000
