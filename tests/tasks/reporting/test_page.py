import base64
import re
import shutil

import numpy as np
import pandas
import pytest
import report_results
import torch
from report_page import Reader, draw

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
def drawn(small, tmp_path_factory):
    return draw(small, tmp_path_factory.mktemp("page") / "out")


def test_the_same_files_give_the_same_bytes_wherever_they_are(drawn, tmp_path):
    copied = report_results.write_results(tmp_path / "elsewhere")
    assert draw(copied, tmp_path / "out") == drawn


def test_everything_is_in_the_page_itself(drawn):
    text, metrics = drawn
    read = Reader(text)
    assert read.pictures
    outside = [address for address in read.addresses if not address.startswith(("data:", "#"))]
    assert outside == []
    assert "url(" not in text
    assert "@import" not in text
    assert text.count("<script") == 1
    assert metrics["not_run"] == 0
    assert metrics["tables"] == len(read.tables)
    assert "Not run in this profile" not in read.text


def test_agents_in_motion_wait_for_the_reader(drawn):
    read = Reader(drawn[0])
    assert [base64.b64decode(video["src"].partition(",")[2]) for video in read.videos] == [
        b"HalfCheetah in motion",
        b"Hopper in motion",
    ]
    for video in read.videos:
        assert {"controls", "muted", "loop", "playsinline"} <= video.keys()
        assert "autoplay" not in video  # the script plays it, for who has not asked for less motion
        assert video["poster"].startswith("data:image/jpeg")
        assert len(video["aria-label"]) > 10


def test_the_page_opens_with_a_picture_and_three_numbers(drawn, no_charts, tmp_path):
    before, *_ = drawn[0].partition("<nav")
    assert before.count("<video") == 1
    assert before.count("<table") == 0
    read = Reader(before)
    # 50 - 2 · 7.5 of 50 in both environments; 1 / (0.05 · 0.9) of the bytes; onnxruntime, compacted: a
    # quarter of PyTorch's time with zeros
    assert re.findall(r'class="value">([^<]*)<', before) == ["70\u00a0%", "22×", "4.0×"]
    assert "2 seeds: no confidence interval" in read.text
    assert "kept by BCQ agents when SNIP prunes 95\u00a0% of their weights" in read.text
    text, _ = draw(report_results.write_results(tmp_path / "run", seeds=(0, 1, 2)), tmp_path / "out")
    assert "95\u00a0% interval 60\u00a0% to 80\u00a0%" in Reader(text).text


def test_every_chart_and_table_links_to_its_csv(drawn, small):
    read = Reader(drawn[0])
    links = {address for address in read.addresses if address.startswith("#csv-")}
    embedded = dict(re.findall(r'id="(csv-[^"]+)" href="data:text/csv;base64,([^"]+)"', drawn[0]))
    assert {link[1:] for link in links} == set(embedded)
    for source in TABLES:
        name = f"csv-{source.path.rpartition('/')[2]}"
        assert base64.b64decode(embedded[name]) == (small / source.path).read_bytes()
    captions = re.findall(r"<figcaption.*?</figcaption>", drawn[0].partition("<nav")[2], re.DOTALL)
    without = [caption for caption in captions if 'class="csv"' not in caption]
    # What was run, and with what, is in the records; two pictures show a training and a large photo; the last
    # table is advice.
    assert len(without) == 6, without


def test_charts_are_files_named_by_the_number_of_their_figure(small, tmp_path):
    text, _ = draw(small, tmp_path / "out")
    numbered = re.findall(r"<figcaption><b>Figure (\d+)\.", text.partition("<nav")[2])
    assert numbered == [str(n) for n in range(1, len(numbered) + 1)]
    files = {path.name: path.read_bytes() for path in (tmp_path / "out/figures").iterdir()}
    (first,) = re.findall(r"(?s)<figure>(?:(?!</figure>).)*<b>Figure 1\.</b>", text.partition("<nav")[2])[:1]
    (chart,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', first)
    assert files["figure-01.svg"] == base64.b64decode(chart)
    assert {re.match(r"figure-(\d+)", name)[1].lstrip("0") for name in files} <= set(numbered)
    type_sizes = {float(size) for file in files.values() for size in re.findall(rb"([\d.]+)px", file)}
    assert min(type_sizes) == look.LOOK["font.size"]  # 11 px where a chart is as wide as a phone's page


def test_the_answer_begins_with_the_study_s_first_claim(small, no_charts, tmp_path):
    root = tmp_path / "run"
    shutil.copytree(small, root)
    (root / "docs/study").mkdir(parents=True)
    (root / results.STUDY.path).write_text(
        "claim,compared,value,low,high,p_holm,seeds\n"
        "One is more,one - other,5.4,1.2,9.6,0.08,3\n"
        "Not trained,b,,,,,0\n"
    )
    read = Reader(draw(root, tmp_path / "out")[0])
    assert read.answers[1].startswith("This repository's study: one is more, +5.4 (+1.2 to +9.6) points")
    assert read.table("claim") == [["One is more", "one - other", "+5.4 (+1.2 to +9.6)", "0.080", "3"]]


def test_the_citation_is_of_the_latest_commit(drawn):
    cited = re.search(r'<pre id="citation"[^>]*>(.*?)</pre>', drawn[0], re.DOTALL)[1]
    assert cited.startswith("@software{singleshot,")
    assert "commit 0123456789abcdef" in cited
    assert "profile small" in cited


def test_a_screen_reader_finds_its_way(drawn):
    read = Reader(drawn[0])
    assert all(len(picture["alt"]) > 10 for picture in read.pictures)
    assert read.headings[0] == 1
    assert all(later - earlier <= 1 for earlier, later in zip(read.headings, read.headings[1:], strict=False))
    assert drawn[0].count("<h1") == 1
    assert all(heading.strip() for rows in read.tables for heading in rows[0])  # each is a button that sorts


def test_answers_come_in_order_and_are_the_tables(drawn):
    what, kept, cost, styles, compilers, *_ = Reader(drawn[0]).answers
    # 16 + 4 cells of 90 seconds each stage; from report_results
    for words in ("20 cells of 2 steps", "3 minutes in all", "(2 cores, 23.5 GB, no GPU)", "0123456789"):
        assert words in what
    # by hand: SNIP's score at 0.95 is 50 - 2 · 7.5 of 50, GraSP's 50 - 3 · 7.5
    assert "BCQ agents 70\u00a0% with SNIP" in kept
    # COO at 95 %: 5 · 0.05 = a quarter; packed: 0.05 · 0.9
    for words in ("4.0 times fewer bytes", "(the paper: 4)", "22 times fewer", "1 state 2.0 times as fast"):
        assert words in cost
    assert "62% (swirls)" in styles
    assert "58%" in styles
    assert "onnxruntime in 5 of 5 conditions" in compilers
    assert "openvino-bf16, at lower precision, has 3.0 times" in compilers


def test_table_1_is_the_sizes_beside_the_papers(drawn):
    rows = Reader(drawn[0]).table("method", "network", "ours, MB", "paper, MB", "ours / paper")
    assert len(rows) == 24
    assert ["Dense Model", "vae", "4.763", "4.7621", "1.00"] in rows
    # 5 · 0.05 of 0.529 MB as COO tensors; packed, which the paper has none of, 1.05 · 0.05 of it
    assert ["SNIP (95% sparse)", "actor", "0.1322", "0.14297", "0.925"] in rows
    assert ["GraSP (95% sparse), packed", "actor", "0.02777", "–", "–"] in rows


def test_table_i_is_the_speeds_beside_the_reports(drawn):
    rows = Reader(drawn[0]).table("px", "method", "ours, s", "paper, s", "ours / paper")
    assert ["256", "Version 1, AlexNet", "50.0", "9.15", "5.46"] in rows
    assert ["256", "Version 1, VGG-19", "250", "23.0", "10.9"] in rows
    assert ["256", "Version 2", "0.100", "0.0200", "5.00"] in rows
    # 250 / 0.1 beside 23 / 0.02
    assert ["256", "speedup over VGG-19", "2,500×", "1,150×", "2.17"] in rows
    # The report has no pictures of 48 px.
    assert ["48", "Version 2", "0.0100", "–", "–"] in rows


def test_the_other_tables_are_the_csv_files(drawn, small):
    read = Reader(drawn[0])
    # Masked policies take 1 / (1 + i) ms a state on runtime i, styles 120 / (1 + i).
    timed = read.table("network", "form", "input", "torch", "onnxruntime", "openvino-bf16")
    assert ["HalfCheetah/bcq/snip-0.95", "masked", "batch 256, 1 thread", "256", "128", "85.3"] in timed
    assert ["styles/swirls", "dense", "batch 1, 256 px, 1 thread", "120", "60.0", "40.0"] in timed
    statistics = pandas.read_csv(small / results.STATISTICS.path)
    rows = read.table("environment", "pruner", "sparsity", "score")  # all are of BCQ, and of two seeds
    assert [float(row[3]) for row in rows] == pytest.approx(statistics["score_mean"].tolist(), rel=5e-3)
    assert [float(row[6]) for row in rows] == pytest.approx(statistics["retention"].tolist(), rel=5e-3)
    quality = read.table("picture", "style ratio: VGG-16", "VGG-19", "AlexNet")
    assert quality[1][1:] == ["0.310", "0.400", "0.620", "0.400", "0.500"]
    assert read.table("preparation", "most probable")[1][1] == "Egyptian cat"
    compiler = ["nGraph (3.4)", "OpenVINO, which absorbed nGraph", "openvino-bf16", "1.0", "5 of 5", "3.00"]
    assert compiler in [row[:6] for row in read.table("the report's (section)", "successor")]


@pytest.fixture
def no_charts(monkeypatch):
    """Charts take seconds; what they show is tested beside what draws them."""
    panels = [Panel("data:image/svg+xml;base64,", "a chart of these rows")]
    monkeypatch.setattr(
        Chart, "figure", lambda _chart, rows, keys, by=(): Figure(panels if len(rows) else [])
    )


@pytest.mark.parametrize("half", [0, 1])
def test_tables_that_are_not_there_are_said_to_be_missing(small, no_charts, tmp_path, half):
    """Every second one, so that each figure is once without its table and with others; once pictures, too."""
    root = tmp_path / "run"
    shutil.copytree(small, root)
    for source in TABLES[half::2]:
        (root / source.path).unlink()
    for pattern in (*results.PICTURES, results.PROVENANCE) if half else ():
        for path in root.glob(pattern):
            path.unlink()
    text, metrics = draw(root, tmp_path / "out")
    assert metrics["not_run"] > 0
    _, missing = text.split("<h2>Not run in this profile</h2>")
    for source in TABLES[half::2]:
        assert f"<code>dvc repro</code> writes {source.path}" in missing
    assert not re.search(r"\bnan\b|None|Traceback", Reader(text).text)


def test_without_pytorch_no_runtime_is_the_fastest(small, no_charts, tmp_path):
    root = tmp_path / "run"
    shutil.copytree(small, root)
    timings = pandas.read_csv(root / results.TIMINGS.path)
    timings[timings["runtime"] != "torch"].to_csv(root / results.TIMINGS.path, index=False)
    text, _ = draw(root, tmp_path / "out")
    assert "Not known: PyTorch, the baseline for the others, was not timed." in Reader(text).text
    assert not re.search(r"has – times|Traceback", Reader(text).text)


def test_nothing_at_all_makes_a_page_that_says_so(tmp_path):
    text, metrics = draw(tmp_path / "empty", tmp_path / "out")
    assert metrics["figures"] == 0
    assert metrics["tables"] == 1  # what to do next
    assert re.findall("<h2>(.*?)</h2>", text) == [
        "Contents",
        "What was run?",
        "Next",
        "Not run in this profile",
    ]
    assert text.count("<li>", text.index('id="not-run"')) == metrics["not_run"]


@pytest.mark.parametrize("source", results.TABLES, ids=lambda source: source.path)
def test_an_empty_table_is_as_good_as_none(tmp_path, source):
    """It has the columns of the rows that are written to it, and so all that the page reads."""
    (tmp_path / "table.csv").touch()
    for found in (Results({source.path: tmp_path / "table.csv"}), Results({})):
        table = found.table(source)
        assert table.empty
        assert list(table) == source.columns
    if source in TABLES:
        assert set(report_results.COLUMNS[source].split(", ")) <= set(source.columns)


@pytest.mark.parametrize(
    ("other", "told"), [({"cores": 64}, False), ({"instructions": "AVX512"}, True), ({"gpu": "A GPU"}, True)]
)
def test_cells_of_several_kinds_of_processor_are_told_apart(other, told):
    machine = {"processor": "A", "instructions": "AVX2", "cores": 2, "gpu": None}
    mixed = provenance.mixed_processors([{"stage": "train", "machines": [machine, machine | other]}])
    assert list(mixed) == ["train"] * told


@pytest.mark.parametrize(
    ("path", "change", "named"),
    [
        (results.SPEED.path, lambda text: text.replace("size_px", "size"), r"size_px.*dvc repro -f"),
        (results.SPEED.path, lambda text: f'{text}"unclosed', r"speed\.csv.*dvc repro -f"),
        ("results/provenance/agents/train.json", lambda _: '{"stage": ', r"agents/train\.json: not JSON"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it_or_the_column(
    small, no_charts, tmp_path, path, change, named
):
    root = tmp_path / "run"
    shutil.copytree(small, root)
    (root / path).write_text(change((root / path).read_text()))
    with pytest.raises(UserError, match=named):
        draw(root, tmp_path / "out")


def test_names_are_text_never_markup_and_large_pictures_are_scaled_down(small, no_charts, tmp_path):
    root = tmp_path / "run"
    shutil.copytree(small, root)
    table = root / results.CLASSIFICATION.path
    table.write_text(table.read_text().replace("tiger cat", "<script>alert(1)</script>"))
    noise = torch.from_numpy(np.random.default_rng(0).random((3, 900, 1600), dtype=np.float32))
    for path in root.rglob("*.jpg"):
        path.write_bytes(encode_jpeg(noise))
    text, _ = draw(root, tmp_path / "out", profile="<b>small</b>")
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text
    assert "<b>small" not in text
    assert len(text) < 6_000_000
