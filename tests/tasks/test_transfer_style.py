import json
import math
import zipfile
from dataclasses import replace

import pandas
import pytest
import torch

from singleshot.io.images import encode_jpeg, encode_png, read_rgb
from singleshot.job import Artifact, Checkpoint, Job, Metrics, Progress
from singleshot.style.backbones import save_backbone
from singleshot.style.datasets.weights import read_backbone
from singleshot.style.gatys import GatysConfig
from tasks import transfer_style as transfer
from tasks.transfer_style import TransferParams, transfer_style

COLUMNS = "study,backbone,loss,optimizer,style,size_px,iteration,content_loss,style_loss,total_loss,seconds"
CONFIG = GatysConfig(backbone="alexnet", iterations=20, size_px=40)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("inputs")
    backbone, _ = read_backbone("alexnet", "packages")
    save_backbone(backbone, directory / "normalized.safetensors")
    ramp = torch.linspace(0, 1, 96).repeat(64, 1)
    photo = torch.stack([ramp, 1 - ramp, torch.full_like(ramp, 0.5)])
    (directory / "photos").mkdir()
    with zipfile.ZipFile(directory / "photos/photos.zip", "w") as archive:
        archive.writestr("ramp.jpg", encode_jpeg(photo))
    y, x = torch.meshgrid(torch.arange(80), torch.arange(80), indexing="ij")
    painting = torch.stack([(x // 8 + y // 8) % 2, x // 16 % 2, y // 16 % 2]).float()
    (directory / "painting.png").write_bytes(encode_png(painting))
    return {
        "photos": directory / "photos",
        "painting": directory / "painting.png",
        "backbone": directory / "normalized.safetensors",
    }


def job(inputs, output, checkpoint=None, **changes):
    output.mkdir()
    params = TransferParams("backbones", "ramp", "squares", replace(CONFIG, **changes))
    return Job(params, inputs, output, checkpoint=checkpoint)


def history(directory):
    return pandas.read_csv(directory / "history.csv")


def test_leaves_picture_history_and_summary(inputs, tmp_path):
    events = list(transfer_style([job(inputs, tmp_path / "a")]))
    output = tmp_path / "a"
    assert (output / "history.csv").read_text().splitlines()[0] == COLUMNS
    rows = history(output)
    assert (rows["iteration"].iloc[0], rows["iteration"].iloc[-1]) == (0, 20)
    key = rows[["study", "backbone", "loss", "optimizer", "size_px"]].drop_duplicates()
    assert key.to_numpy().tolist() == [["backbones", "alexnet", "mse", "lbfgs", 40]]
    assert rows["seconds"].is_monotonic_increasing
    summary = json.loads((output / "summary.json").read_text())
    assert summary["params"]["config"]["optimizer"] == "lbfgs"
    assert summary["params"]["style"] == "squares"
    assert summary["total_loss"] == rows["total_loss"].iloc[-1] < rows["total_loss"].iloc[0]
    assert summary["seconds_per_iteration"] == pytest.approx(rows["seconds"].iloc[-1] / 21)
    assert summary["diverged"] is False
    # the photo, 64 x 96, and the painting, 80 x 80, at 40 px
    shapes = {path.stem: tuple(read_rgb(path).shape) for path in output.glob("*.png")}
    assert shapes == {"picture": (3, 40, 60), "content": (3, 40, 60), "style": (3, 40, 40)}
    metrics = [event for event in events if isinstance(event, Metrics)]
    assert [event.step for event in metrics] == rows["iteration"].tolist()
    assert [event.values["total"] for event in metrics] == rows["total_loss"].tolist()
    fractions = [event.fraction for event in events if isinstance(event, Progress)]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1


@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
def test_interrupted_anywhere_it_ends_as_if_it_had_not_been(inputs, tmp_path, monkeypatch, optimizer):
    monkeypatch.setattr(transfer, "CHECKPOINT_SECONDS", 0.0)
    whole = job(inputs, tmp_path / "whole", optimizer=optimizer)
    checkpoints = [event for event in transfer_style([whole]) if isinstance(event, Checkpoint)]
    assert len(checkpoints) == len(history(whole.output))
    for checkpoint in (checkpoints[0], checkpoints[12], checkpoints[-1]):
        rest = job(inputs, tmp_path / str(checkpoint.step), checkpoint.state, optimizer=optimizer)
        previews = [event for event in transfer_style([rest]) if isinstance(event, Artifact)]
        assert all(int(event.name[-9:-4]) >= checkpoint.step for event in previews)
        straight, resumed = history(whole.output), history(rest.output)
        assert resumed.drop(columns="seconds").equals(straight.drop(columns="seconds"))
        before = straight["iteration"] < checkpoint.step
        assert resumed["seconds"][before].equals(straight["seconds"][before])
        assert resumed["seconds"].is_monotonic_increasing
        assert (rest.output / "picture.png").read_bytes() == (whole.output / "picture.png").read_bytes()


def test_sgd_is_recorded_as_diverged_with_the_last_finite_picture(inputs, tmp_path):
    events = list(transfer_style([job(inputs, tmp_path / "a", optimizer="sgd", iterations=50)]))
    rows = history(tmp_path / "a")
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["diverged"] is True
    assert summary["iteration"] == rows["iteration"].iloc[-1] < 50
    assert rows["total_loss"].map(math.isfinite).all()
    assert read_rgb(tmp_path / "a/picture.png").shape == (3, 40, 60)
    assert all(
        math.isfinite(v) for event in events if isinstance(event, Metrics) for v in event.values.values()
    )


def test_a_backbone_that_gives_no_finite_loss_is_an_error(inputs, tmp_path):
    broken, _ = read_backbone("alexnet", "packages")
    broken.convolutions[0].bias.fill_(math.nan)
    save_backbone(broken, tmp_path / "nan.safetensors")
    with pytest.raises(FloatingPointError, match=r"nan\.safetensors"):
        list(transfer_style([job(inputs | {"backbone": tmp_path / "nan.safetensors"}, tmp_path / "a")]))
