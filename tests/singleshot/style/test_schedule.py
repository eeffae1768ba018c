from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from singleshot.style import schedule
from singleshot.style.perceptual_loss import PerceptualLoss
from singleshot.style.schedule import FAST, SIZES, SLOW, plan, style_weight, work

SMALLEST = SIZES[-1]


def planned(left, gone=0.0, step=5, now=SMALLEST, photos=11, before=0.0):
    return plan(now, step, photos, left=left, gone=gone, before=before).config


@pytest.mark.parametrize(
    ("left", "size"),
    [
        (1000, (16, 128, 1)),
        (4000, (16, 192, 1)),  # 1,250 batches are 3 thousand units of work of 192 px, 7 of 256 px
        (8000, (32, 256, 1)),
        (40_000, (32, 256, 4)),
    ],
)
def test_the_size_is_the_largest_that_there_is_time_for(left, size):
    config = planned(left)
    assert (config.width, config.image_px, config.batch_size) == size
    assert config.batches == 5 + round(left / work(config))


def test_work_is_as_it_was_measured():
    """Seconds per batch on an AMD EPYC, by the docstring of SIZES."""
    measured = (5.8, 2.9, 1.4, 0.6, 0.25)
    assert [work(size) for size in SIZES] == pytest.approx([s / 0.25 for s in measured], rel=0.1)


def test_it_does_not_grow_late_but_gives_way_until_half_of_the_time():
    large = replace(SMALLEST, width=32, image_px=256)
    assert planned(8000, gone=0.3).image_px == 128
    assert planned(5000, gone=0.3, now=large).image_px == 256  # 890 batches
    smaller = planned(3000, gone=0.3, now=large)
    assert (smaller.width, smaller.image_px) == (32, 128)  # a network keeps its width
    assert planned(10, gone=0.9, before=0.8, now=large, step=900).image_px == 256  # nearly done


@pytest.mark.parametrize(("side", "larger"), [(128, 192), (192, 256), (256, 256)])
def test_pictures_have_the_next_larger_side_in_the_second_half(side, larger):
    now = replace(SMALLEST, image_px=side)
    later = planned(490, gone=0.51, before=0.49, step=100, now=now)
    assert (later.image_px, later.width) == (larger, now.width)
    assert later.batches == 100 + round(490 / work(later))
    assert planned(40, gone=0.53, before=0.51, step=110, now=later).image_px == larger  # once
    assert planned(8, gone=0.51, before=0.49, step=8).image_px == 128  # few batches do not become fewer


def test_rate_and_augmentation_are_settled_early():
    few, many = planned(2000), planned(10_000, photos=1_000_000)
    assert (few.learning_rate, few.augment) == (FAST, True)
    assert (many.learning_rate, many.augment) == (FAST, False)
    long = planned(200_000)
    assert (long.learning_rate, long.batches) == (SLOW, 5 + round(200_000 / work(SIZES[0])))
    assert planned(1000, gone=0.5, before=0.4, now=long).learning_rate == SLOW


@pytest.mark.parametrize(("strongest", "weight"), [(1e9, 8.0), (2.5, 2.0)])
def test_a_painting_far_from_all_photos_gets_less_weight(monkeypatch, strongest, weight):
    """The weighted style loss of the photos is 10, by hand: 8 / ‖(3, 4)‖ of a squared distance of 6.25."""
    inputs = {"photos": Path(), "painting": Path(), "backbone": Path()}
    painting = {"relu1_2": torch.tensor([[[3.0, 4.0]]])}
    grams = {"relu1_2": torch.tensor([[[3.0, 6.5]]])}
    network = SimpleNamespace(represent=lambda x: SimpleNamespace(grams=grams))

    def open_loss(inputs, config, device, dtype):
        return PerceptualLoss(network, painting, config.loss_weights)

    monkeypatch.setattr(schedule, "open_loss", open_loss)
    monkeypatch.setattr(schedule, "STRONGEST_STYLE", strongest)
    photos = SimpleNamespace(batch=lambda *_, augment: torch.zeros(4, 3, 8, 8))
    assert style_weight(photos, inputs, "cpu") == weight
