import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_networks import style_inputs

from pipelines.cli import learn_style as module
from pipelines.cli.learn_style import learn_style
from pipelines.cli.stylize import StylizeOptions, stylize_inputs
from singleshot.errors import UserError
from singleshot.io.images import encode_png, read_rgb
from singleshot.style import schedule as planning
from singleshot.style.apply.stylize import StylizeSettings
from singleshot.style.backbones import load_backbone
from singleshot.style.datasets.weights import Origin
from singleshot.style.johnson import JohnsonConfig, Trainer
from singleshot.style.model_file import load_model
from singleshot.style.perceptual_loss import PerceptualLoss
from tasks import fetch_weights, train_style

ROOT = Path(__file__).parents[2]
SMALL = JohnsonConfig(width=4, image_px=32, style_px=32, batch_size=1)
OPTIONS = StylizeOptions(StylizeSettings(), batch_size=1, force=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A painting, photos as `train_style` reads them, and a VGG16 with random weights."""
    return style_inputs(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def backbone(made):
    return load_backbone(made["backbone"])


@pytest.fixture(autouse=True)
def workplace(made, backbone, tmp_path, monkeypatch):
    """A painting, photos, a VGG16; on paper a batch takes a second, on one core."""
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    shutil.copyfile(made["painting"], "My Painting.png")
    photos = Path("holiday")
    photos.mkdir()
    for i in range(3):
        picture = torch.rand(3, 40, 50, generator=torch.Generator().manual_seed(i))
        (photos / f"{i}.png").write_bytes(encode_png(picture))
    origin = Origin("made for a test", "0" * 64, "none")
    monkeypatch.setattr(fetch_weights, "read_backbone", lambda name, source: (backbone, origin))
    monkeypatch.setattr(module.joblib, "cpu_count", lambda: 1)
    monkeypatch.setattr(planning, "SIZES", (SMALL,))
    monkeypatch.setattr(planning, "PREVIEW_SECONDS", 2)
    monkeypatch.setattr(planning, "_seconds_per_batch", lambda *_: 1.0)
    now, update = [0.0], Trainer.update

    def in_a_second(self, photos):
        now[0] += 1
        return update(self, photos)

    monkeypatch.setattr(Trainer, "update", in_a_second)
    monkeypatch.setattr(train_style, "monotonic", lambda: now[0])


def learn(seconds=6, **options):
    learn_style(Path("My Painting.png"), Path("holiday"), options.get("name"), seconds)


def test_a_painting_becomes_a_style_that_stylize_takes(capsys):
    learn()
    out = capsys.readouterr().out
    assert "my-painting: 6 batches of 1 x 32 px of 3 photos, a network of width 4" in out
    assert "preview: styles/my-painting/preview.jpg, renewed every 2 s" in out
    assert "stylize -s my-painting" in out
    style = Path("styles/my-painting")
    _, card = load_model(style / "model.safetensors")
    assert (card.steps, card.style) == (6, "my-painting")
    assert json.loads((style / "card.json").read_text())["steps"] == 6
    assert read_rgb(style / "contact_sheet.jpg").shape[0] == 3
    # Renewed to the end: the last preview of the training
    assert (style / "preview.jpg").read_bytes() == (style / "previews/000006.jpg").read_bytes()
    stylize_inputs("my-painting", ["holiday/0.png"], Path("out"), OPTIONS)
    assert read_rgb(Path("out/0.png")).shape == (3, 40, 50)


def test_it_goes_on_where_it_was_interrupted(monkeypatch, capsys):
    artifact = module._Preview.artifact

    def interrupted(self, cell, name, file):
        artifact(self, cell, name, file)
        if name == "checkpoints/000004.safetensors":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module._Preview, "artifact", interrupted)
        with pytest.raises(KeyboardInterrupt):
            learn()
    assert Path("styles/my-painting/preview.jpg").exists()
    assert not Path("styles/my-painting/model.safetensors").exists()
    capsys.readouterr()
    # The machine is slower by now, and `make clean` ran: what was begun is not planned anew.
    shutil.rmtree("build")
    monkeypatch.setattr(planning, "_seconds_per_batch", lambda *_: 3.0)
    learn()
    assert "1 to compute (1 from a checkpoint)" in capsys.readouterr().out
    interrupted_bytes = Path("styles/my-painting/model.safetensors").read_bytes()
    learn()
    assert "1 reused, 0 to compute" in capsys.readouterr().out.splitlines()[-3]
    monkeypatch.setattr(planning, "_seconds_per_batch", lambda *_: 1.0)
    shutil.rmtree(".cells")
    shutil.rmtree("styles")
    learn()
    assert Path("styles/my-painting/model.safetensors").read_bytes() == interrupted_bytes


def test_it_trains_on_its_own_photos_alone():
    """Not also on a shard of an earlier call, which had more of them."""
    learn()
    shards = Path("build/learn-style/my-painting/photos")
    shutil.copytree(shards / "00", shards / "01")
    learn()
    assert [shard.name for shard in shards.iterdir()] == ["00"]


def test_another_time_does_not_overwrite_a_style():
    learn()
    before = sorted(Path("styles/my-painting").iterdir())
    with pytest.raises(UserError, match=r"styles/my-painting: has a finished network, of another painting"):
        learn(seconds=9)
    assert sorted(Path("styles/my-painting").iterdir()) == before
    learn(seconds=9, name="longer")
    assert load_model(Path("styles/longer/model.safetensors"))[1].steps == 9


def test_a_refused_call_leaves_the_plan_of_the_style_as_it_was(monkeypatch, capsys):
    learn()
    monkeypatch.setattr(planning, "_seconds_per_batch", lambda *_: 2.0)
    with pytest.raises(UserError, match="has a finished network"):
        learn(seconds=9)
    learn()
    assert "1 reused, 0 to compute" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("painting", "photos", "name", "said"),
    [
        ("none.png", None, None, r"none\.png: no such file"),
        ("My Painting.png", "nowhere", None, "nowhere: no such file"),
        ("holiday", None, None, "holiday: is a folder; name a picture in it"),
        ("My Painting.png", "holiday/0.png", None, r"0\.png: is not a folder; give --photos the folder"),
        ("My Painting.png", None, "../up", "can't be a style's name"),
        ("My Painting.png", None, "swirls", "'swirls' is a style of the pipeline"),
        ("params.yaml", "holiday", None, "params.yaml"),
    ],
)
def test_a_mistake_is_one_line(painting, photos, name, said):
    with pytest.raises(UserError, match=said):
        learn_style(Path(painting), photos and Path(photos), name, 6)
    assert not Path("styles").exists()


@pytest.mark.parametrize(
    ("seconds", "cost", "chosen"),
    [
        # ENOUGH_BATCHES are 1,000: of 256 px at 0.5 s each there is no time, of 128 px there is
        (400, 1.0, (128, 1, 1600)),
        (1000, 1.0, (256, 1, 1000)),
        (4000, 1.0, (256, 4, 1000)),
        (100, 1.0, (128, 1, 400)),  # the least there is, though it is not enough
        (10_000_000, 1.0, (256, 4, 60_000)),  # two epochs of COCO
    ],
)
def test_the_time_decides_on_the_size(monkeypatch, made, seconds, cost, chosen):
    sizes = tuple(JohnsonConfig(image_px=px, batch_size=n) for px, n in ((256, 4), (256, 1), (128, 1)))
    monkeypatch.setattr(planning, "SIZES", sizes)
    monkeypatch.setattr(planning, "_style_weight", lambda *_: 8.0)
    # a second for 256 x 256
    monkeypatch.setattr(
        planning, "_seconds_per_batch", lambda p, i, size, d: cost * planning._pixels(size) / 256**2
    )
    planned = planning.schedule({"photos": made["photos"]}, seconds, "cpu").config
    assert (planned.image_px, planned.batch_size, planned.batches) == chosen
    assert planned.augment  # three photos come again and again
    assert planned.learning_rate == (planning.FAST if planned.batches <= 3000 else planning.SLOW)


@pytest.mark.parametrize(("strongest", "weight"), [(1e9, 8.0), (2.5, 2.0)])
def test_a_painting_far_from_all_photos_gets_less_weight(monkeypatch, strongest, weight):
    """The weighted style loss of the photos is 10, by hand: 8 / ‖(3, 4)‖ of a squared distance of 6.25."""
    inputs = {"photos": Path(), "painting": Path(), "backbone": Path()}
    painting = {"relu1_2": torch.tensor([[[3.0, 4.0]]])}
    grams = {"relu1_2": torch.tensor([[[3.0, 6.5]]])}
    network = SimpleNamespace(represent=lambda x: SimpleNamespace(grams=grams))

    def open_loss(inputs, config, device, dtype):
        return PerceptualLoss(network, painting, config.loss_weights)

    monkeypatch.setattr(planning, "open_loss", open_loss)
    monkeypatch.setattr(planning, "STRONGEST_STYLE", strongest)
    photos = SimpleNamespace(batch=lambda *_, augment: torch.zeros(4, 3, 8, 8))
    assert planning._style_weight(photos, inputs, "cpu") == weight
