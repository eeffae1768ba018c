import pandas
import pytest
from matplotlib import image, pyplot

from tasks.job import Job
from tasks.reporting import figures
from tasks.reporting.figures import draw_figures
from tasks.reporting.look import FigureParams


@pytest.fixture
def scores():
    rows = [
        ("Hopper", algorithm, pruner, sparsity, seed, update, 0.0, 0.0, seed + update * (1 - sparsity), 10)
        for algorithm in ("bc", "bcq")
        for pruner, sparsity in (("dense", 0.0), ("snip", 0.5), ("snip", 0.95))
        for seed in (0, 2)
        for update in (10, 20)
    ]
    columns = [
        "task", "algorithm", "pruner", "sparsity", "seed", "update", "return_mean", "return_std",
        "d4rl_score", "episodes",
    ]  # fmt: skip
    return pandas.DataFrame(rows, columns=columns)


def draw(scores, directory, profile="smoke"):
    directory.mkdir()
    scores.to_csv(directory / "given.csv", index=False)
    list(draw_figures([Job(FigureParams(profile), {"scores": directory / "given.csv"}, directory)]))
    return directory / "scores.png"


def test_equal_scores_give_equal_bytes_and_others_another_picture(scores, tmp_path):
    first, second = draw(scores, tmp_path / "1"), draw(scores, tmp_path / "2")
    assert first.read_bytes() == second.read_bytes()
    assert image.imread(first).shape[2] == 4
    scores.loc[scores.index[-1], "d4rl_score"] += 50
    assert draw(scores, tmp_path / "3").read_bytes() != first.read_bytes()


def test_curves_are_means_over_seeds_of_the_highest_sparsity(scores):
    figure, axis = pyplot.subplots()
    rows = scores[(scores["algorithm"] == "bc") & (scores["pruner"] == "snip")]
    figures.plot_learning(axis, rows[rows["sparsity"] == 0.95], "blue", dashed=False)
    (line,) = axis.get_lines()
    # seeds 0 and 2 score update / 20 + seed: by hand, 1.5 and 2 on average
    assert list(line.get_xdata()) == [10, 20]
    assert list(line.get_ydata()) == pytest.approx([1.5, 2.0])
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((0.5, 3.0))
    pyplot.close(figure)
