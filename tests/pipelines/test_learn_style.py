import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from small_networks import random_alexnet, style_inputs

from pipelines.cli import learn_style as module
from pipelines.cli.learn_style import learn_style
from pipelines.cli.stylize import StylizeOptions, stylize_inputs
from singleshot.errors import UserError
from singleshot.io.images import encode_png, read_rgb
from singleshot.style import schedule as planning
from singleshot.style import training
from singleshot.style.apply.stylize import StylizeSettings
from singleshot.style.backbones import load_backbone
from singleshot.style.datasets import fetch
from singleshot.style.datasets.weights import Origin
from singleshot.style.johnson import JohnsonConfig, Trainer
from singleshot.style.model_file import load_model

ROOT = Path(__file__).parents[2]
SMALL = JohnsonConfig(width=4, image_px=32, style_px=32, batch_size=1)
OPTIONS = StylizeOptions(StylizeSettings(), batch_size=1, force=True)


@pytest.fixture(autouse=True)
def workplace(tmp_path, tmp_path_factory, monkeypatch):
    """A painting, photos, a VGG16 with random weights; on paper a batch takes a second, on one core."""
    made = style_inputs(tmp_path_factory.mktemp("made"))
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    shutil.copyfile(made["painting"], "My Painting.png")
    photos = Path("holiday")
    photos.mkdir()
    for i in range(3):
        picture = torch.rand(3, 40, 50, generator=torch.Generator().manual_seed(i))
        (photos / f"{i}.png").write_bytes(encode_png(picture))
    origin = Origin("made for a test", "0" * 64, "none")
    backbones = {
        "vgg16": load_backbone(made["backbone"]),
        "alexnet": load_backbone(random_alexnet(tmp_path / "alexnet")),
    }
    monkeypatch.setattr(fetch, "read_backbone", lambda name, source: (backbones[name], origin))
    monkeypatch.setattr(module.joblib, "cpu_count", lambda: 1)
    monkeypatch.setattr(module, "SIZES", (SMALL,))
    monkeypatch.setattr(planning, "SIZES", (SMALL,))
    monkeypatch.setattr(training, "PREVIEW_SECONDS", 2)
    now, update = [0.0], Trainer.update

    def in_a_second(self, photos):
        now[0] += 1
        return update(self, photos)

    monkeypatch.setattr(Trainer, "update", in_a_second)
    monkeypatch.setattr(training, "monotonic", lambda: now[0])


def learn(seconds=6):
    learn_style(Path("My Painting.png"), Path("holiday"), None, seconds)


def test_a_painting_becomes_a_style_that_stylize_takes(capsys):
    learn()
    out = capsys.readouterr().out
    assert "my-painting: 0.1 minutes on 1 core, of 3 photos" in out
    assert "preview: styles/my-painting/preview.jpg, renewed every" in out
    assert "6 batches, at last of 1 x 32 px, a network of width 4" in out
    assert "not yet a style: it is faint before some 100 batches" in out
    assert "stylize -s my-painting" in out
    style = Path("styles/my-painting")
    _, card = load_model(style / "model.safetensors")
    assert (card.steps, card.style) == (6, "my-painting")
    assert json.loads((style / "card.json").read_text())["steps"] == 6
    assert read_rgb(style / "contact_sheet.jpg").shape[0] == 3
    # Renewed to the end: the last preview of the training
    assert (style / "preview.jpg").read_bytes() == (style / "previews/000006.jpg").read_bytes()
    stylize_inputs(["my-painting"], ["holiday/0.png"], Path("out"), OPTIONS)
    assert read_rgb(Path("out/0.png")).shape == (3, 40, 50)


@pytest.mark.slow
def test_it_goes_on_where_it_was_interrupted(monkeypatch, capsys):
    artifact = module._Preview.artifact

    def interrupted(self, cell, name, file):
        artifact(self, cell, name, file)
        if name == "checkpoints/000007.safetensors":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module._Preview, "artifact", interrupted)
        with pytest.raises(KeyboardInterrupt):
            learn(seconds=12)
    assert Path("styles/my-painting/preview.jpg").exists()
    assert not Path("styles/my-painting/model.safetensors").exists()
    capsys.readouterr()
    shutil.rmtree("build")  # `make clean` ran
    learn(seconds=12)
    assert "1 to compute (1 from a checkpoint)" in capsys.readouterr().out
    interrupted_bytes = Path("styles/my-painting/model.safetensors").read_bytes()
    learn(seconds=12)
    assert "1 reused, 0 to compute" in capsys.readouterr().out.splitlines()[-4]
    shutil.rmtree(".cells")
    shutil.rmtree("styles")
    learn(seconds=12)
    assert Path("styles/my-painting/model.safetensors").read_bytes() == interrupted_bytes
    before = sorted(Path("styles/my-painting").iterdir())
    with pytest.raises(UserError, match=r"styles/my-painting: has a finished network, of another painting"):
        learn(seconds=9)
    assert sorted(Path("styles/my-painting").iterdir()) == before


@pytest.mark.parametrize(
    ("painting", "photos", "name", "said"),
    [
        ("none.png", None, None, "none.png"),
        ("My Painting.png", "nowhere", None, "nowhere"),
        ("My Painting.png", "holiday/0.png", None, "0.png"),
        ("My Painting.png", None, "../up", "../up"),
        ("My Painting.png", None, "swirls", "'swirls'"),
        ("params.yaml", "holiday", None, "params.yaml"),
    ],
)
def test_a_mistake_is_told(painting, photos, name, said):
    with pytest.raises((UserError, OSError), match=re.escape(said)):
        learn_style(Path(painting), photos and Path(photos), name, 6)
    assert not Path("styles").exists()
