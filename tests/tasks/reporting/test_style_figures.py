import json

import pandas
import pytest
import torch
from matplotlib.figure import Figure

from singleshot.io.images import encode_png
from tasks.reporting import style_figures

COLUMNS = [
    "study", "backbone", "loss", "optimizer", "style", "size_px", "iteration", "content_loss", "style_loss",
    "total_loss", "seconds",
]  # fmt: skip
RUNS = {
    "backbones": [("vgg19", "mse", "lbfgs"), ("alexnet", "mse", "lbfgs")],
    "losses": [("vgg19", loss, "lbfgs") for loss in ("mse", "l1", "smooth_l1", "huber")],
    "optimizers": [("vgg16", "mse", optimizer) for optimizer in ("lbfgs", "adam", "sgd")],
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
                rows.append(
                    (study, backbone, loss, optimizer, "swirls", 96, iteration, 1.0, 2.0, total, seconds)
                )
    return pandas.DataFrame(rows, columns=COLUMNS)


@pytest.fixture
def pictures(tmp_path):
    return make_pictures(tmp_path / "pictures", 24, 32)


def make_pictures(root, height, width):
    generator = torch.Generator().manual_seed(0)
    for study, runs in RUNS.items():
        for run in runs:
            directory = root / study / "-".join((*run, "swirls"))
            directory.mkdir(parents=True)
            for name in ("picture", "content", "style"):
                noise = torch.rand(3, height, width, generator=generator)
                (directory / f"{name}.png").write_bytes(encode_png(noise))
            (directory / "summary.json").write_text(json.dumps({"diverged": "sgd" in run}))
    return root


def test_curves_and_bars_are_the_tables(studies, pictures):
    def variants(study):
        rows = studies[studies["study"] == study]
        return style_figures.optimised(rows, style_figures.VARIED[study], (pictures / study).joinpath)

    axis = Figure().add_subplot()
    style_figures.plot_histories(axis, variants("optimizers"))
    lbfgs, adam, sgd = axis.get_lines()
    assert list(adam.get_ydata()) == pytest.approx([200, 100, 200 / 3, 50, 40])
    assert [line.get_label() for line in (lbfgs, adam)] == ["L-BFGS", "Adam"]
    assert sgd.get_label() == "SGD (diverged: 1e+21 after 1)"
    assert axis.get_yscale() == "log"
    assert axis.get_ylim() == (10, 1000)  # of L-BFGS and Adam, 20 to 200; SGD leaves the panel

    axis = Figure().add_subplot()
    style_figures.plot_seconds(axis, variants("losses"))
    assert [bar.get_width() for bar in axis.patches] == [5, 10, 15, 20]
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["MSE", "L1", "smooth L1", "Huber"]


def test_a_label_says_whatever_differs(studies, pictures):
    rows = studies[studies["study"] == "losses"].copy()
    rows.loc[rows["loss"] == "l1", "backbone"] = "vgg16"
    directory = pictures / "losses"
    (directory / "vgg19-l1-lbfgs-swirls").rename(directory / "vgg16-l1-lbfgs-swirls")
    labels = [variant.label for variant in style_figures.optimised(rows, "loss", directory.joinpath)]
    assert labels == ["VGG-19, MSE", "VGG-16, L1", "VGG-19, smooth L1", "VGG-19, Huber"]
