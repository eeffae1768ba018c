import json

import numpy as np
import pandas
import pytest
import torch
from matplotlib import image, pyplot

from singleshot.errors import UserError
from singleshot.io.images import encode_png
from tasks.job import Job
from tasks.reporting import style_figures
from tasks.reporting.look import FigureParams
from tasks.reporting.style_figures import draw_style_figures

COLUMNS = [
    "study", "backbone", "loss", "optimizer", "size_px", "iteration", "content_loss", "style_loss",
    "total_loss", "seconds",
]  # fmt: skip
RUNS = {
    "backbones": [("vgg19", "mse", "lbfgs"), ("alexnet", "mse", "lbfgs")],
    "losses": [("vgg19", loss, "lbfgs") for loss in ("mse", "l1", "smooth_l1", "huber")],
    "optimizers": [("vgg16", "mse", optimizer) for optimizer in ("lbfgs", "adam", "sgd")],
}
FILES = {
    "backbones_history.png",
    "backbones_pictures.png",
    "losses_seconds.png",
    "losses_history.png",
    "optimizers_history.png",
    "optimizers_pictures.png",
}


@pytest.fixture
def studies():
    rows = []
    for study, runs in RUNS.items():
        for i, (backbone, loss, optimizer) in enumerate(runs):
            for iteration in range(2 if optimizer == "sgd" else 5):
                total = (
                    10.0 ** (1 + 20 * iteration) if optimizer == "sgd" else (i + 1) * 100 / (1 + iteration)
                )
                seconds = (i + 1) * (iteration + 1)
                rows.append((study, backbone, loss, optimizer, 96, iteration, 1.0, 2.0, total, seconds))
    return pandas.DataFrame(rows, columns=COLUMNS)


@pytest.fixture
def pictures(tmp_path):
    return make_pictures(tmp_path / "pictures", 24, 32)


def make_pictures(root, height, width):
    generator = torch.Generator().manual_seed(0)
    for study, runs in RUNS.items():
        for run in runs:
            directory = root / study / "-".join(run)
            directory.mkdir(parents=True)
            for name in ("picture", "content", "style"):
                noise = torch.rand(3, height, width, generator=generator)
                (directory / f"{name}.png").write_bytes(encode_png(noise))
            (directory / "summary.json").write_text(json.dumps({"diverged": "sgd" in run}))
    return root


HEADER = (
    "style,pruner,sparsity,style_ratio,content_loss,ssim,onnxruntime_seconds,onnxruntime_compacted_seconds"
)


def draw(studies, pictures, directory, pruning=HEADER, pruned=None):
    directory.mkdir()
    studies.to_csv(directory.parent / "studies.csv", index=False)
    (directory.parent / "pruning.csv").write_text(pruning)
    inputs = {"studies": directory.parent / "studies.csv", "pictures": pictures}
    inputs |= {"pruning": directory.parent / "pruning.csv", "pruned": pruned or directory.parent}
    (metrics,) = draw_style_figures([Job(FigureParams("smoke"), inputs, directory)])
    return metrics.values


def test_draws_every_figure_below_a_megabyte_and_equally_each_time(studies, tmp_path):
    # As large and as incompressible as they come.
    pictures = make_pictures(tmp_path / "pictures", 512, 683)
    drawn = draw(studies, pictures, tmp_path / "1")
    assert drawn == {"figures_of_backbones": 2, "figures_of_losses": 2, "figures_of_optimizers": 2}
    files = {path.name: path for path in (tmp_path / "1").iterdir()}
    assert files.keys() == FILES
    assert all(path.stat().st_size < 1_000_000 for path in files.values())
    draw(studies, pictures, tmp_path / "2")
    assert all(path.read_bytes() == (tmp_path / "2" / name).read_bytes() for name, path in files.items())


def test_a_study_that_was_not_run_is_not_drawn(studies, pictures, tmp_path):
    drawn = draw(studies[studies["study"] == "losses"], pictures, tmp_path / "1")
    assert drawn == {"figures_of_backbones": 0, "figures_of_losses": 2, "figures_of_optimizers": 0}
    assert {path.name for path in (tmp_path / "1").iterdir()} == {"losses_seconds.png", "losses_history.png"}


def test_curves_and_bars_are_the_tables(studies, pictures):
    def variants(study):
        rows = studies[studies["study"] == study]
        return style_figures.optimised(rows, style_figures.VARIED[study], (pictures / study).joinpath)

    (axis,) = style_figures.draw_histories("loss", variants("optimizers")).axes
    lbfgs, adam, sgd = axis.get_lines()
    assert list(adam.get_ydata()) == pytest.approx([200, 100, 200 / 3, 50, 40])
    assert [line.get_label() for line in (lbfgs, adam)] == ["L-BFGS", "Adam"]
    assert sgd.get_label() == "SGD (diverged: 1e+21 after 1)"
    assert axis.get_yscale() == "log"
    assert axis.get_ylim() == (10, 1000)  # of L-BFGS and Adam, 20 to 200; SGD leaves the panel

    (axis,) = style_figures.draw_seconds("seconds", variants("losses")).axes
    assert [bar.get_width() for bar in axis.patches] == [5, 10, 15, 20]
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["MSE", "L1", "smooth L1", "Huber"]

    axes = style_figures.draw_pictures("pictures", variants("optimizers")).axes
    assert [axis.get_title() for axis in axes] == ["content", "style", "L-BFGS", "Adam", "SGD (diverged)"]
    shown = axes[3].get_images()[0].get_array()
    expected = image.imread(pictures / "optimizers/vgg16-mse-adam/picture.png")
    assert np.allclose(shown, expected, atol=1e-6)
    pyplot.close("all")


def test_a_label_says_whatever_differs(studies, pictures):
    rows = studies[studies["study"] == "losses"].copy()
    rows.loc[rows["loss"] == "l1", "backbone"] = "vgg16"
    directory = pictures / "losses"
    (directory / "vgg19-l1-lbfgs").rename(directory / "vgg16-l1-lbfgs")
    labels = [variant.label for variant in style_figures.optimised(rows, "loss", directory.joinpath)]
    assert labels == ["VGG-19, MSE", "VGG-16, L1", "VGG-19, smooth L1", "VGG-19, Huber"]


PRUNING = f"""{HEADER}
dots,dense,0.0,0.3,7.5,0.4,0.2,
dots,snip,0.98,0.4,8.0,0.35,0.2,0.1
dots,snip,0.9,0.35,7.6,0.38,0.2,0.19
dots,random,0.98,0.6,9.0,0.3,0.2,0.2
"""


@pytest.fixture
def pruned(tmp_path):
    directory = tmp_path / "pruned" / "dots"
    directory.mkdir(parents=True)
    for shade, name in enumerate(("photo", "dense", "snip-0.9", "snip-0.98", "random-0.98")):
        (directory / f"{name}.png").write_bytes(encode_png(torch.full((3, 8, 8), shade / 4)))
    return directory.parent


def test_pruned_networks_are_drawn_against_sparsity_from_the_dense_one_on(
    studies, pictures, pruned, tmp_path
):
    draw(studies, pictures, tmp_path / "1", PRUNING, pruned)
    drawn = {path.name for path in (tmp_path / "1").iterdir()}
    assert drawn == FILES | {"pruning_dots.png", "pruning_dots_pictures.png"}
    rows = pandas.read_csv(tmp_path / "pruning.csv")
    ratio, content, ssim, seconds = style_figures.draw_pruned("dots", rows).axes
    curves = [
        {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in axis.get_lines()}
        for axis in (ratio, content, ssim, seconds)
    ]
    assert curves[0] == {"SNIP": [(0, 0.3), (0.9, 0.35), (0.98, 0.4)], "random": [(0, 0.3), (0.98, 0.6)]}
    assert curves[1]["random"] == [(0, 7.5), (0.98, 9.0)]
    assert curves[2]["SNIP"] == [(0, 0.4), (0.9, 0.38), (0.98, 0.35)]
    assert curves[3]["SNIP"] == [(0, 0.2), (0.9, 0.19), (0.98, 0.1)]
    pyplot.close("all")


def test_pictures_of_pruned_networks_are_where_their_pruner_and_sparsity_are(pruned, tmp_path):
    (tmp_path / "pruning.csv").write_text(PRUNING)
    rows = pandas.read_csv(tmp_path / "pruning.csv")
    axes = style_figures.draw_pruned_pictures("dots", rows, pruned / "dots").axes
    titles = [axis.get_title().replace("\N{NO-BREAK SPACE}", " ") for axis in axes]
    assert titles == ["photo", "dense", "SNIP 90 %", "SNIP 98 %", "", "", "", "random 98 %"]
    shades = [float(axis.get_images()[0].get_array()[0, 0, 0]) for axis in axes if axis.get_images()]
    assert shades == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=0.01)
    pyplot.close("all")


def test_a_missing_picture_is_named(studies, pictures, tmp_path):
    (pictures / "backbones/alexnet-mse-lbfgs/picture.png").unlink()
    with pytest.raises(UserError, match="alexnet-mse-lbfgs"):
        draw(studies, pictures, tmp_path / "1")
