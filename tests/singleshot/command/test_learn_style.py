import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from small_networks import random_alexnet, style_inputs

from singleshot.command import learn_style as command
from singleshot.command.learn_style import learn_style
from singleshot.command.styles import list_styles
from singleshot.command.stylize import StylizeOptions, stylize_inputs
from singleshot.errors import UserError
from singleshot.io.images import encode_png, read_rgb
from singleshot.job import Checkpoint
from singleshot.style import Style
from singleshot.style import learning as module
from singleshot.style import schedule as planning
from singleshot.style.apply.stylize import StylizeSettings
from singleshot.style.backbones import load_backbone
from singleshot.style.datasets.weights import Origin
from singleshot.style.johnson import JohnsonConfig, Trainer
from singleshot.style.model_file import load_model

SMALL = JohnsonConfig(width=4, image_px=32, style_px=32, batch_size=1)
OPTIONS = StylizeOptions(StylizeSettings(), batch_size=1, force=True)


@pytest.fixture(autouse=True)
def workplace(tmp_path, tmp_path_factory, monkeypatch):
    """A painting, photos, a VGG16 with random weights; on paper a batch takes a second, on one core."""
    made = style_inputs(tmp_path_factory.mktemp("made"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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
    monkeypatch.setattr(module, "read_backbone", lambda name, source: (backbones[name], origin))
    monkeypatch.setattr(command.joblib, "cpu_count", lambda: 1)
    monkeypatch.setattr(module, "SIZES", (SMALL,))
    monkeypatch.setattr(planning, "SIZES", (SMALL,))
    monkeypatch.setattr(planning, "SHOW_SECONDS", 2)
    now, update = [0.0], Trainer.update

    def in_a_second(self, photos, done):
        now[0] += 1
        return update(self, photos, done)

    monkeypatch.setattr(Trainer, "update", in_a_second)
    monkeypatch.setattr(planning, "monotonic", lambda: now[0])


def learn(seconds=6, painting="My Painting.png", name=None):
    learn_style(Path(painting), Path("holiday"), name, seconds / 60)


def test_a_painting_becomes_a_style_that_stylize_takes(capsys):
    learn()
    out = capsys.readouterr().out
    assert "my-painting: 0.1 minutes on 1 core; " in out
    assert "preview: styles/my-painting/preview.jpg, renewed every" in out
    assert "6 batches, at last of 1 x 32 px, a network of width 4" in out
    assert "not yet a style: it is faint before some 100 batches" in out
    assert "next: the same command with --minutes 2 goes on" in out  # 6 batches took 0.1 minutes
    style = Path("styles/my-painting")
    _, card = load_model(style / "model.safetensors")
    assert (card.steps, card.style) == (6, "my-painting")
    assert json.loads((style / "card.json").read_text())["steps"] == 6
    assert read_rgb(style / "contact_sheet.jpg").shape[0] == 3
    assert read_rgb(style / "preview.jpg").shape == (3, 32, 64)  # a photo beside its picture
    stylize_inputs({"my-painting": 1.0}, ["holiday/0.png"], Path("out"), OPTIONS)
    assert read_rgb(Path("out/0-my-painting.png")).shape == (3, 40, 50)


def test_it_goes_on_where_it_was_interrupted_to_the_same_bytes(monkeypatch):
    task = module.train_style

    def interrupted(jobs):
        for event in task(jobs):
            yield event
            if isinstance(event, Checkpoint) and event.step >= 7:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "train_style", interrupted)
        with pytest.raises(KeyboardInterrupt):
            learn(seconds=12)
    style = Path("styles/my-painting")
    assert (style / "preview.jpg").exists()
    assert not (style / "model.safetensors").exists()
    learn(seconds=12)
    gone_on = (style / "model.safetensors").read_bytes()
    shutil.rmtree(style)
    learn(seconds=12)
    assert (style / "model.safetensors").read_bytes() == gone_on


def test_a_finished_one_goes_on_with_more_minutes_alone(monkeypatch, capsys):
    monkeypatch.setattr("singleshot.command.learn_style.FEW_BATCHES", 6)
    learn(seconds=6)
    assert "next: singleshot stylize --style my-painting photo.jpg" in capsys.readouterr().out
    before = load_model(Path("styles/my-painting/model.safetensors"))[0].state_dict()
    with pytest.raises(UserError, match=r"styles/my-painting: has a network of 0\.1 minutes; give more"):
        learn(seconds=6)
    learn(seconds=9)
    network, card = load_model(Path("styles/my-painting/model.safetensors"))
    assert card.steps == 9
    moved = [(value - before[name]).abs().max() for name, value in network.state_dict().items()]
    assert 0 < max(moved) < 4 * 0.003  # Adam's steps are at most about the learning rate
    Path("My Painting.png").write_bytes(Path("holiday/0.png").read_bytes())
    with pytest.raises(UserError, match="of another painting"):
        learn(seconds=12)


@pytest.mark.parametrize(
    ("painting", "photos", "name", "said"),
    [
        ("none.png", None, None, "none.png"),
        ("My Painting.png", "nowhere", None, "nowhere"),
        ("My Painting.png", "holiday/0.png", None, "0.png"),
        ("My Painting.png", None, "../up", "../up"),
        ("notes.txt", "holiday", None, "notes.txt"),
    ],
)
def test_a_mistake_is_told(painting, photos, name, said):
    Path("notes.txt").write_text("no picture", encoding="utf-8")
    with pytest.raises((UserError, OSError), match=re.escape(said)):
        learn_style(Path(painting), photos and Path(photos), name, 0.1)
    assert not list(Path().glob("styles/*"))


@pytest.mark.parametrize(
    ("painting", "name"),
    [
        ("神奈川 沖.png", "神奈川-沖"),
        ("Ελληνικά.png", "ελληνικά"),
        ("हिन्दी.png", "हिन्दी"),
        ("waves.png", "waves"),
    ],
)
def test_names_of_any_script_stay_and_one_that_hides_a_shipped_style_is_told(painting, name, capsys):
    Path("My Painting.png").rename(painting)
    learn(2, painting)
    _, card = load_model(Path("styles", name, "model.safetensors"))
    assert card.style == json.loads(Path("styles", name, "card.json").read_text("utf-8"))["style"] == name
    assert ("hides the style" in capsys.readouterr().out) == (name == "waves")
    list_styles()
    assert f"styles/{name}/model.safetensors" in capsys.readouterr().out


def test_a_script_learns_a_style_and_keeps_other_files(tmp_path):
    style = Style.learn("My Painting.png", minutes=0.1, photos="holiday")
    assert (style.card.steps, style.card.style) == (6, "My Painting")
    assert not Path("styles").exists()
    kept = Style.learn("My Painting.png", minutes=0.1, photos="holiday", folder="mine")
    assert Style.load("mine/model.safetensors").card == kept.card
    Path("notes").write_text("no picture", encoding="utf-8")
    with pytest.raises(UserError, match="notes: "):
        Style.learn("notes", minutes=0.1, photos="holiday", folder=tmp_path)
    assert Path("notes").exists()
    with pytest.raises(UserError, match="minutes is 0"):
        Style.learn("My Painting.png", minutes=0)
