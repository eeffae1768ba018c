"""What charts draw, by hand; the page's own tests do not look into pictures."""

import pandas
import pytest
import report_results
from matplotlib.figure import Figure

from tasks.reporting import deployment, look, pruning, result_tables, style, style_figures
from tasks.reporting.results import Results


@pytest.fixture
def axis():
    return Figure().add_subplot()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return Results(report_results.find(report_results.write_results(tmp_path_factory.mktemp("run"))))


def vertices(collection):
    return [tuple(path.vertices[:, 1]) for path in collection.get_paths()]


def test_learning_curves_are_means_with_bands_from_min_to_max(axis, found):
    scores = found.table(result_tables.SCORES)
    rows = scores[(scores["environment"] == "Hopper") & scores["pruner"].isin(["dense", "snip"])]
    pruning.draw_learning(axis, rows, "snip")
    dense, less, more = axis.get_lines()
    # update / 20 - 10 · sparsity + seed, of seeds 0 and 1
    assert list(dense.get_xdata()) == [500, 1000]
    assert list(dense.get_ydata()) == pytest.approx([25.5, 50.5])
    assert list(more.get_ydata()) == pytest.approx([16.0, 41.0])
    band = axis.collections[2].get_paths()[0].vertices
    assert sorted({round(y, 3) for x, y in band if x == 1000}) == [40.5, 41.5]
    assert dense.get_color() == look.PRUNERS["dense"]
    assert more.get_color() == look.PRUNERS["snip"] != less.get_color()


def test_retention_has_a_dot_for_each_pruner_and_whiskers_where_there_is_an_interval(axis):
    rows = pandas.DataFrame(
        [
            ("Hopper", "snip", 0.9, 0.8, 1.1),
            ("all", "snip", 0.95, None, None),
            ("Hopper", "grasp", 0.4, 0.2, 0.5),
        ],
        columns=["environment", "pruner", "retention", "retention_low", "retention_high"],
    )
    pruning.draw_retention(axis, rows)
    _, snip, grasp = axis.get_lines()
    assert list(snip.get_xdata()) == [0.9, 0.95]
    assert grasp.get_xdata()[0] == 0.4
    assert axis.collections[0].get_segments()[0][:, 0].tolist() == [0.8, 1.1]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["Hopper", "all environments"]
    assert axis.get_xlim()[0] <= 0


def test_layers_are_means_beside_the_dense_layer(axis, found):
    layers = found.table(result_tables.LAYERS)
    rows = layers[(layers["environment"] == "Hopper") & (layers["sparsity"] == 0.95)]
    pruning.draw_layers(axis, rows)
    dense, snip, _ = axis.get_lines()
    assert list(dense.get_xdata()) == [9200, 120000]
    assert list(snip.get_xdata()) == [450, 0]  # of seeds 400 and 500; an empty layer


def test_savings_and_memory_are_of_the_sizes(axis, found):
    sizes = found.table(result_tables.SIZES)
    saving = pruning.savings(sizes[sizes["sparsity"] == 0.95])
    assert saving.to_dict() == pytest.approx(
        {
            "dense": 1,
            "coo": 4,
            "csr_int32": 10,
            "packed_raw": 1 / (0.05 * 1.05),
            "packed_exponents": 1 / (0.05 * 0.9),
            "entropy bound": 1 / (0.05 * 1.1),
        },
        rel=1e-4,
    )
    pruning.draw_memory(axis, sizes[sizes["network"] == "actor"])
    coo = axis.get_lines()[1]
    assert list(coo.get_xdata()) == pytest.approx([0, 90, 95])
    assert list(coo.get_ydata()) == pytest.approx([5 * 0.529, 0.5 * 0.529, 0.25 * 0.529])


def test_a_pruners_shades_go_to_its_own_colour():
    assert pruning.shade("snip", 0.95, [0.5, 0.95]) == look.PRUNERS["snip"]
    assert pruning.shade("snip", 0.5, [0.5, 0.95]) != look.PRUNERS["snip"]


def test_speedups_are_over_pytorch_of_the_same_condition(axis):
    timed = pandas.DataFrame(
        [("a", "dense", 1, 1, None, "torch", 8.0), ("a", "dense", 1, 1, None, "x", 4.0),
         ("b", "dense", 1, 1, 256.0, "torch", 8.0), ("b", "dense", 1, 1, 256.0, "x", 1.0),
         ("b", "dense", 1, 2, 256.0, "x", 1.0)],
        columns=[*deployment.CONDITION, "runtime", "p50_ms"],
    )  # fmt: skip
    speedup = deployment.speedups(timed)
    assert speedup.loc[speedup["runtime"] == "x", "speedup"].tolist() == [2, 8]
    assert deployment.geometric_mean(pandas.Series([2.0, 8.0])) == pytest.approx(4)
    assert deployment.winners_of(timed).tolist() == ["x", "x", "x"]
    timed.loc[1, "p50_ms"] = 8.004  # to three digits what PyTorch has
    assert deployment.winners_of(timed).tolist() == ["several alike", "x", "x"]
    deployment.draw_speedups(axis, speedup)
    assert [label.get_text() for label in axis.get_yticklabels()] == ["x", "torch"]
    assert list(axis.get_lines()[0].get_xdata()) == [2, 8]
    assert axis.get_lines()[1].get_xdata()[0] == pytest.approx(4)


def test_pairs_are_of_policies_that_were_timed_both_ways(axis, found):
    timings = found.table(result_tables.TIMINGS)
    pairs = deployment.compacted_pairs(timings[timings["status"] == "ok"])
    assert len(pairs) == 6  # three runtimes, two batches; no style
    assert (pairs["masked"] / pairs["compacted"]).tolist() == pytest.approx([2] * 6)


def test_a_loss_that_ran_off_is_known_as_such(found):
    pictures = style.pictures_of(found, "optimizers")
    assert [(each.label, each.diverged) for each in pictures] == [
        ("L-BFGS", False),
        ("Adam", False),
        ("SGD", True),
    ]
    assert list(pictures[1].history["total_loss"]) == pytest.approx([200, 100, 200 / 3, 50, 40])


def test_a_seed_is_named_where_it_tells_networks_apart():
    short = deployment.short_names
    assert short(pandas.Series(["a/bc/seed-0", "styles/x"])) == {
        "a/bc/seed-0": "a/bc",
        "styles/x": "styles/x",
    }
    assert set(short(pandas.Series(["a/bc/seed-0", "a/bc/seed-1"])).values()) == {
        "a/bc/seed-0",
        "a/bc/seed-1",
    }


def test_seconds_are_those_after_the_last_iteration(axis, found):
    style_figures.plot_seconds(axis, style.pictures_of(found, "losses"))
    assert [bar.get_width() for bar in axis.patches] == [2, 4, 6, 8]  # 0.5 · n · 4 iterations


def test_a_picture_without_its_file_is_left_out(found):
    files = {
        name: path for name, path in found.files.items() if "vgg19-l1-lbfgs-swirls/picture.png" not in name
    }
    labels = [each.label for each in style.pictures_of(Results(files), "losses")]
    assert labels == ["MSE", "smooth L1", "Huber"]
