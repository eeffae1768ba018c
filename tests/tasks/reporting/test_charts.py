"""What figures are drawn from, and how, by hand; the page's own tests do not look into pictures."""

import itertools

import numpy as np
import pandas
import pytest
import report_results
from matplotlib.colors import to_rgb

from tasks.reporting import deployment, look, pruning, results, style
from tasks.reporting.look import Chart, Key
from tasks.reporting.results import Results


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return Results(report_results.find(report_results.write_results(tmp_path_factory.mktemp("run"))))


@pytest.fixture
def rows(monkeypatch):
    """Figures as the rows that they are drawn from."""
    monkeypatch.setattr(Chart, "figure", lambda _chart, rows, keys, by=(): rows)


def where(rows, **values):
    for column, value in values.items():
        rows = rows[rows[column] == value]
    return rows


def test_lines_have_bands_and_series_their_keys():
    rows = pandas.DataFrame(
        {"x": [1, 2, 1], "y": [3.0, 4.0, 9.0], "series": ["a", "a", "b"], "low": 1.0, "high": 10.0}
    )
    axis = Chart("lines", "updates", "score").draw(
        rows, {"b": Key("B", "#000000", dashed=True), "a": Key("A", "#ff0000")}
    )
    b, a = axis.axes[0].get_lines()
    assert (list(a.get_xdata()), list(a.get_ydata()), a.get_color()) == ([1, 2], [3, 4], "#ff0000")
    assert b.get_linestyle() == "--"
    assert {tuple(point) for point in axis.axes[0].collections[1].get_paths()[0].vertices} >= {
        (1, 1),
        (2, 10),
    }
    assert (axis.axes[0].get_xlabel(), axis.axes[0].get_ylabel()) == ("updates", "score")


def test_dots_have_a_row_for_each_name_and_whiskers_where_there_is_an_interval():
    rows = pandas.DataFrame({
        "x": [0.9, 0.95, 0.4], "y": ["Hopper", "all", "Hopper"], "series": ["snip", "snip", "grasp"],
        "low": [0.8, None, 0.2], "high": [1.1, None, 0.5],
    })  # fmt: skip
    keys = {"snip": Key("SNIP", "#000000"), "grasp": Key("GraSP", "#ff0000")}
    (axis,) = Chart("dots", "retained score", mark=1).draw(rows, keys).axes
    _, snip, grasp = axis.get_lines()
    assert (list(snip.get_xdata()), list(grasp.get_xdata())) == ([0.9, 0.95], [0.4])
    assert [label.get_text() for label in axis.get_yticklabels()] == ["Hopper", "all"]
    assert axis.collections[0].get_segments()[0][:, 0].tolist() == [0.8, 1.1]
    assert snip.get_ydata()[0] < 0 < grasp.get_ydata()[0]  # side by side


def test_bars_say_their_numbers():
    rows = pandas.DataFrame({"x": [2.0, 4.0], "y": ["a", "b"], "series": "", "label": ["2×", "4×"]})
    (axis,) = Chart("bars", "times").draw(rows, {"": Key("", "#000000")}).axes
    assert [bar.get_width() for bar in axis.patches] == [2, 4]
    assert [text.get_text() for text in axis.texts] == ["2×", "4×"]


def test_no_two_pruners_look_alike():
    """By their distance in red, green and blue; two greys that readers took for one were 22 apart."""
    colours = [np.array(to_rgb(each)) for each in (*look.PRUNERS.values(), look.OTHER)]
    assert min(256 * np.linalg.norm(a - b) for a, b in itertools.combinations(colours, 2)) > 50


def test_panels_share_axes_and_have_a_legend_of_what_they_show():
    rows = pandas.DataFrame(
        {"x": [1, 9], "y": [1, 2], "series": ["snip", "grasp"], "algorithm": ["bc", "bcq"]}
    )
    keys = look.pruner_keys(["snip", "grasp"]) | {"unused": Key("unused", "#000000")}
    figure = Chart("lines", "x", alt="{} by x", share="x").figure(rows, keys, ["algorithm"])
    assert [(panel.title, panel.alt) for panel in figure.panels] == [("BC", "BC by x"), ("BCQ", "BCQ by x")]
    assert [key.label for key in figure.legend] == ["SNIP", "GraSP"]
    assert Chart("lines", "x").figure(rows[:0], keys, ["algorithm"]).panels == []


def test_learning_curves_are_means_with_bands_from_min_to_max(rows, found):
    """Of update / 20 - 10 · sparsity + seed, of seeds 0 and 1."""
    drawn = pruning.learning_curves(found, "snip")
    assert list(where(drawn, environment="Hopper", series=0.0)["y"]) == pytest.approx([25.5, 50.5])
    more = where(drawn, environment="Hopper", series=0.95, x=1000).iloc[0]
    assert (more["y"], more["low"], more["high"]) == pytest.approx((41, 40.5, 41.5))


def test_layers_are_means_beside_the_dense_layer(rows, found):
    (_, (environment, drawn)) = pruning.layers(found)
    assert environment == "Hopper"
    assert where(drawn, series="dense")["x"].tolist() == [9200, 120000]
    assert where(drawn, series="snip")["x"].tolist() == [450, 0]  # of seeds 400 and 500; an empty layer


def test_savings_and_memory_are_of_the_sizes(rows, found):
    sizes = found.table(results.SIZES)
    saving = pruning.savings(sizes[sizes["sparsity"] == 0.95])
    expected = {"dense": 1, "coo": 4, "csr_int32": 10, "packed_raw": 1 / (0.05 * 1.05)}
    expected |= {"packed_exponents": 1 / (0.05 * 0.9), "entropy bound": 1 / (0.05 * 1.1)}
    assert saving.to_dict() == pytest.approx(expected, rel=1e-4)
    coo = where(pruning.memory(sizes), network="actor", series="coo")
    assert coo["x"].tolist() == pytest.approx([0, 90, 95])
    assert coo["y"].tolist() == pytest.approx([5 * 0.529, 0.5 * 0.529, 0.25 * 0.529])


def test_rounded_values_are_means_over_seeds(found):
    """Of 370 and 372 kB, scores of 60 and 64, and so on."""
    row, _ = pruning.rounded_values(found.table(results.QUANTIZED))
    assert [row[f"kB {kind}"] for kind in ("float32", "float16", "int8")] == ["371", "201", "126"]
    assert [row[f"score {kind}"] for kind in ("float32", "float16", "int8")] == ["62.0", "61.0", "52.0"]


def test_dense_agents_are_a_line_across_sparsities(rows, found):
    drawn = where(pruning.score_by_sparsity(found.table(results.STATISTICS)), environment="Hopper")
    assert where(drawn, series="dense")[["x", "y"]].to_numpy().tolist() == [[90, 50], [95, 50]]
    assert where(drawn, series="snip")[["x", "y"]].to_numpy().tolist() == [[90, 42.5], [95, 35]]


def test_speedups_are_over_pytorch_of_the_same_condition(rows):
    timed = pandas.DataFrame(
        [("a", "dense", 1, 1, None, "torch", 8.0), ("a", "dense", 1, 1, None, "x", 4.0),
         ("b", "dense", 1, 1, 256.0, "torch", 8.0), ("b", "dense", 1, 1, 256.0, "x", 1.0),
         ("b", "dense", 1, 2, 256.0, "x", 1.0)],
        columns=[*deployment.CONDITION, "runtime", "p50_ms"],
    )  # fmt: skip
    assert where(deployment.speedups(timed), runtime="x")["speedup"].tolist() == [2, 8]
    drawn = deployment.speed_by_runtime(timed)
    assert where(drawn, series="mean")[["x", "y"]].to_numpy().tolist() == [
        [pytest.approx(4), "x, 4.0 times as fast"],
        [1, "torch, as fast"],
    ]


def test_pairs_are_of_policies_that_were_timed_both_ways(rows, found):
    pairs = deployment.compacted_pairs(deployment.read_timings(found))
    assert pairs["gain"].tolist() == pytest.approx([2] * 6)  # three runtimes, two batches; no style
    drawn = deployment.zeros_and_compacted(pairs)
    assert where(drawn, y="torch").set_index("series")["x"].to_dict() == {"masked": 1.0, "compacted": 0.5}


def test_losses_are_the_histories(rows, found):
    pictures = style.pictures_of(found, "optimizers")
    assert [each.label for each in pictures] == ["L-BFGS", "Adam", "SGD (diverged)"]
    drawn = style.total_loss(pictures)
    assert where(drawn, series="Adam")["y"].tolist() == pytest.approx([200, 100, 200 / 3, 50, 40])
    assert "SGD" not in set(drawn["series"])  # it ran off


def test_a_label_says_whatever_differs(found, tmp_path):
    studies = found.table(results.STUDIES)
    studies.loc[(studies["study"] == "losses") & (studies["loss"] == "l1"), "backbone"] = "vgg16"
    studies.to_csv(tmp_path / "studies.csv", index=False)
    changed = Results({**found.files, results.STUDIES.path: tmp_path / "studies.csv"})
    labels = [each.label for each in style.pictures_of(changed, "losses")]
    assert labels == ["VGG-19, MSE", "VGG-19, smooth L1", "VGG-19, Huber"]  # VGG-16's has no files
