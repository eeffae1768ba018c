import csv
import hashlib
import io
import itertools
from dataclasses import asdict, replace

import pytest
import torch
from PIL import Image
from small_networks import random_alexnet, style_inputs
from torch.nn import functional

from singleshot.errors import UserError
from singleshot.io.images import read_rgb
from singleshot.job import Artifact, Checkpoint, Job, Metrics, Progress
from singleshot.style import schedule
from singleshot.style import training as module
from singleshot.style.backbones import load_backbone
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.evaluation.verdict import judged
from singleshot.style.johnson import JohnsonConfig, Trainer, TrainStyleParams
from singleshot.style.losses import levels, levels_loss
from singleshot.style.model_file import load_model
from singleshot.style.training import train_style
from singleshot.style.transformer_net import TransformerNet

TINY = JohnsonConfig(
    width=4, image_px=32, style_px=32, batch_size=2, batches=5, augment=True, checkpoint_every=2
)
FILES = ("model.safetensors", "losses.csv", "contact_sheet.jpg")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return style_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def make_job(inputs, tmp_path_factory):
    def make(seed=0, checkpoint=None, seconds=None, **settings):
        params = TrainStyleParams("stripes", replace(TINY, **settings), seed, seconds)
        output = tmp_path_factory.mktemp("output")
        return Job(params, inputs, output, checkpoint=checkpoint, commit="c0ffee")

    return make


@pytest.fixture(scope="module")
def trained(make_job):
    """A training that nothing interrupts: its job and events. Not to be changed."""
    job = make_job()
    return job, list(train_style([job]))


def results(job, events):
    """Every file a job leaves, by name."""
    artifacts = {event.name: event.content for event in events if isinstance(event, Artifact)}
    return artifacts | {name: (job.output / name).read_bytes() for name in FILES}


def losses(job):
    with (job.output / "losses.csv").open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("settings", "every_s", "interruptions"),
    [
        ({}, 30.0, 2),
        ({"temporal_weight": 10.0, "precision": "bfloat16"}, 30.0, 2),
        ({"checkpoint_every": 4}, 30.0, 1),
        ({"checkpoint_every": 4}, 0.0, 2),  # after batch 2, where a row of losses is written, too
    ],
)
def test_interrupted_training_ends_with_the_same_bytes(
    make_job, monkeypatch, settings, every_s, interruptions
):
    """It is killed right after each call's first checkpoint."""
    monkeypatch.setattr(module, "REPORT_EVERY", 2)
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", every_s)
    through = make_job(**settings)
    expected = results(through, train_style([through]))
    artifacts, checkpoint, killed = [], None, 0
    while True:
        job = make_job(checkpoint=checkpoint, **settings)
        events = train_style([job])
        for event in events:
            artifacts.append(event)
            if isinstance(event, Checkpoint):
                checkpoint, killed = event.state, killed + 1
                events.close()
                break
        else:
            break
    assert results(job, artifacts) == expected
    assert killed == interruptions


def test_equal_seeds_give_equal_bytes_and_others_do_not(make_job, trained):
    first = results(*trained)
    second, other = (results(job, train_style([job])) for job in map(make_job, (0, 1)))
    assert first == second
    assert first["model.safetensors"] != other["model.safetensors"]


def test_what_it_leaves(trained, inputs):
    job, events = trained
    files = results(job, events)
    assert set(files) == {
        *FILES,
        *(f"previews/{step:06}.jpg" for step in (2, 4, 5)),
        *(f"checkpoints/{step:06}.safetensors" for step in (2, 4)),
    }
    preview = Image.open(io.BytesIO(files["previews/000005.jpg"]))
    assert preview.size == (64, 32)
    assert [event.step for event in events if isinstance(event, Metrics)] == [2, 4, 5]
    assert {"content_loss", "style_loss", "total_loss", "seconds_per_batch"} <= events[0].values.keys()
    assert [event.fraction for event in events if isinstance(event, Progress)] == [0.4, 0.8, 1.0]
    assert [row["step"] for row in losses(job)] == [2, 4, 5]
    _, card = load_model(job.output / "model.safetensors")
    assert card.style == "stripes"
    assert card.style_sha256 == hashlib.sha256(inputs["painting"].read_bytes()).hexdigest()
    assert card.photos == "3, from made for a test"
    assert card.commit == "c0ffee"
    assert card.settings["johnson"] == asdict(job.params.johnson)
    assert card.scores["total_loss"] == pytest.approx(losses(job)[-1]["total"])
    assert card.scores["style_ratio"] > 0


def test_a_second_network_judges_it_on_photos_that_it_has_not_seen(make_job, inputs, tmp_path):
    alexnet = {"alexnet": random_alexnet(tmp_path / "alexnet.safetensors"), "samples": inputs["photos"]}
    job = make_job()
    job = replace(job, params=replace(job.params, unseen=("b", "c")), inputs={**job.inputs, **alexnet})
    list(train_style([job]))
    network, card = load_model(job.output / "model.safetensors")
    photos = [PhotoSet.open(inputs["photos"]).read(name, short_side=module.JUDGED_PX) for name in ("b", "c")]
    with torch.no_grad():
        pictures = [network(photo[None])[0] for photo in photos]
    painting = read_rgb(inputs["painting"], short_side=32)
    expected = judged(pictures, photos, painting, load_backbone(alexnet["alexnet"]))
    assert {name: card.scores[name] for name in expected} == pytest.approx(expected, rel=0.02)


def test_the_first_losses_are_those_of_the_paper_s_equations(make_job, inputs):
    job = make_job(
        batches=1, precision="float32", content_weight=2.0, style_weight=3.0, tv_weight=4.0, levels_weight=5.0
    )
    list(train_style([job]))
    (row,) = losses(job)

    torch.manual_seed(0)
    network, vgg16 = TransformerNet(4), load_backbone(inputs["backbone"])
    photos = PhotoSet.open(inputs["photos"]).batch(0, 0, 2, 32, True)
    painting = read_rgb(inputs["painting"], short_side=32)[None]
    layers = ("relu1_2", "relu2_2", "relu3_3", "relu4_3")
    with torch.no_grad():
        stylised = network(photos)
        features, target, content = (vgg16(x, layers) for x in (stylised, painting, photos))

    def gram(activations):
        _, c, h, w = activations.shape
        return torch.einsum("nihw,njhw->nij", activations, activations) / (c * h * w)

    grams = [(gram(features[layer]), gram(target[layer])) for layer in layers]
    style = sum(((G_hat - G) ** 2).sum() / 2 for G_hat, G in grams)  # 2: the batch
    scale = sum((G**2).sum() for _, G in grams).sqrt()
    difference = ((features["relu2_2"] - content["relu2_2"]) ** 2).mean()
    tv = (stylised.diff(dim=-1) ** 2).mean() + (stylised.diff(dim=-2) ** 2).mean()
    light = levels_loss(stylised, levels(painting))
    expected = {"content": difference, "style": style, "tv": tv, "temporal": 0, "levels": light}
    expected["total"] = 2 * difference + 3 * style / scale + 4 * tv + 5 * light
    assert {name: row[name] for name in expected} == pytest.approx(
        {name: float(value) for name, value in expected.items()}, rel=1e-4
    )


@pytest.fixture
def sizes(monkeypatch):
    """Three small sizes of a training; a batch of the larger ones is more than four times the work."""
    kinds = ((8, 64), (4, 64), (4, 32))
    sizes = [replace(TINY, width=width, image_px=px, batch_size=1, batches=None) for width, px in kinds]
    monkeypatch.setattr(schedule, "SIZES", tuple(sizes))
    monkeypatch.setattr(schedule, "ENOUGH_BATCHES", 60)
    monkeypatch.setattr(schedule, "LARGER_BATCHES", 20)
    return sizes


def test_a_training_grows_with_its_time_and_shrinks_when_the_machine_slows_down(make_job, sizes, monkeypatch):
    """A batch of the smallest size takes 4 s, and 24 times as long from the 60th second on."""
    now, update = [0.0], Trainer.update
    unit = schedule.work(sizes[-1])

    def at_a_pace(self, photos, done):
        now[0] += schedule.work(self.config) / unit * (4 if now[0] < 60 else 96)
        return update(self, photos, done)

    monkeypatch.setattr(Trainer, "update", at_a_pace)
    monkeypatch.setattr(schedule, "monotonic", lambda: now[0])
    job = make_job(seconds=1000.0, width=4, image_px=32, batch_size=1, batches=None)
    list(train_style([job]))
    network, card = load_model(job.output / "model.safetensors")
    plans = card.settings["plans"]
    planned = [(each["width"], each["image_px"]) for each in plans]
    assert [size for size, _ in itertools.groupby(planned)] == [(8, 64), (8, 32)]
    assert network.width == card.settings["johnson"]["width"] == 8
    assert now[0] == pytest.approx(1000, rel=0.1)


def test_a_network_is_widened_where_there_is_time_and_goes_on_after_an_interruption(
    make_job, sizes, monkeypatch
):
    """A batch takes a second, and three from the 21st on."""
    now, update = [0.0], Trainer.update

    def slower(self, photos, done):
        now[0] += 1 if self.step < 20 else 3
        return update(self, photos, done)

    monkeypatch.setattr(Trainer, "update", slower)
    monkeypatch.setattr(schedule, "monotonic", lambda: now[0])
    monkeypatch.setattr(schedule, "SHOW_SECONDS", 20.0)
    monkeypatch.setattr(schedule, "ENOUGH_BATCHES", 8)
    settings = {"seconds": 60.0, "width": 4, "image_px": 32, "batch_size": 1, "batches": None}
    whole = make_job(**settings)
    events = list(train_style([whole]))
    network, card = load_model(whole.output / "model.safetensors")
    assert network.width == card.settings["johnson"]["width"] == 8
    state = next(event.state for event in events if isinstance(event, Checkpoint) and event.step > 10)
    now[0] = 1e6  # some days later
    again = make_job(checkpoint=state, **settings)
    list(train_style([again]))
    for name in FILES:
        assert (again.output / name).read_bytes() == (whole.output / name).read_bytes(), name


def test_the_temporal_loss_makes_a_network_steadier(make_job):
    """Pictures of a photo and of its right part, with noise: what both show changes half as much or less."""
    generator = torch.Generator().manual_seed(0)
    photo = functional.interpolate(torch.rand(1, 3, 10, 10, generator=generator), (64, 64), mode="bilinear")
    changes = []
    for weight in (0.0, 1e4):
        job = make_job(batches=15, checkpoint_every=15, learning_rate=1e-2, temporal_weight=weight)
        list(train_style([job]))
        network, _ = load_model(job.output / "model.safetensors")
        for shift, noise in ((0, 0.05), (1, 0.0), (2, 0.0)):
            following = photo[..., shift:]
            following = following + noise * torch.randn(following.shape, generator=generator)
            with torch.no_grad():
                difference = network(following) - network(photo)[..., shift:]
            changes.append(float(difference[..., 8:-8, 8:-8].square().mean()))
    assert all(after < before / 2 for before, after in zip(changes[:3], changes[3:], strict=True))


def test_a_loss_that_is_not_finite_stops_it(make_job, monkeypatch):
    batch = PhotoSet.batch

    def poisoned(self, seed, step, *others):
        return batch(self, seed, step, *others) * (torch.nan if step == 7 else 1)

    monkeypatch.setattr(PhotoSet, "batch", poisoned)
    job = make_job(batches=12, checkpoint_every=6)
    events = []
    with pytest.raises(
        UserError, match=r"stripes.* batch 8, .* checkpoint is of batch 6; lower learning_rate"
    ):
        events.extend(train_style([job]))
    assert [event.step for event in events if isinstance(event, Checkpoint)] == [6]
    assert not list(job.output.iterdir())


def test_weights_that_are_not_finite_never_reach_a_checkpoint(make_job):
    """After the very update that overflowed, losses still are numbers."""
    job = make_job(learning_rate=torch.inf, batches=2, checkpoint_every=1)
    with pytest.raises(UserError, match="no longer finite in batch 1, before any checkpoint"):
        list(train_style([job]))
