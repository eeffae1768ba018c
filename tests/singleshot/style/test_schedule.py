from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from singleshot.style import schedule
from singleshot.style.perceptual_loss import PerceptualLoss
from singleshot.style.schedule import FAST, SIZES, SLOW, Pace, TimedPace, planned, style_weight, work

SMALLEST = SIZES[-1]


def plan(left, done=0.05, step=5, now=SMALLEST, photos=11):
    return planned(now, step, photos, SimpleNamespace(left=left, done=done))


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
    config = plan(left)
    assert (config.width, config.image_px, config.batch_size) == size


def test_work_is_as_it_was_measured():
    """Seconds per batch on an AMD EPYC, by the docstring of SIZES."""
    measured = (5.8, 2.9, 1.4, 0.6, 0.25)
    assert [work(size) for size in SIZES] == pytest.approx([s / 0.25 for s in measured], rel=0.1)


def test_a_network_keeps_its_width_or_grows():
    wide = replace(SMALLEST, width=32)
    assert (plan(3000, now=wide).width, plan(3000, now=wide).image_px) == (32, 128)
    assert (plan(40_000, done=0.5).width, plan(40_000).width) == (16, 32)  # it grows at first only


@pytest.mark.parametrize(("side", "larger"), [(128, 192), (192, 256), (256, 256)])
def test_pictures_have_the_next_larger_side_in_the_second_half(side, larger):
    now = replace(SMALLEST, image_px=side)
    later = plan(1600, done=0.51, step=100, now=now)
    assert (later.image_px, later.width, later.batch_size) == (larger, now.width, 1)


def test_few_batches_do_not_become_fewer_and_a_machine_that_slows_down_gets_less_work():
    assert plan(8, done=0.51, step=8).image_px == 128
    large = replace(SMALLEST, width=32, image_px=256, batch_size=4)
    assert plan(160 * work(large), done=0.5, step=50, now=large) == large
    smaller = plan(160 * work(replace(large, batch_size=2)), done=0.5, step=50, now=large)
    assert (smaller.width, smaller.image_px, smaller.batch_size) == (32, 256, 2)


def test_rate_and_augmentation_are_settled_at_first():
    few, many = plan(2000), plan(10_000, photos=1_000_000)
    assert (few.learning_rate, few.augment) == (FAST, True)
    assert (many.learning_rate, many.augment) == (FAST, False)
    long = plan(200_000)
    assert (long.width, long.learning_rate) == (32, SLOW)
    assert plan(1000, done=0.5, now=long).learning_rate == SLOW


def test_a_pace_says_after_which_batches_what_is_due():
    """Of eleven batches, with a row of losses every four and a preview every three; planned after a half."""
    pace = Pace(11, 4, 3, plan_at=(0.5,))
    reported, shown, plans = [], [], []
    for batch in range(1, 12):
        pace.advance(2.0)
        for due, batches in ((pace.is_reported, reported), (pace.is_shown, shown), (pace.is_planned, plans)):
            batches += [batch] * due
    assert (reported, shown, plans) == ([3, 4, 6, 8, 9, 11], [3, 6, 9, 11], [6])
    assert (pace.done, pace.left) == (1, 0)


def test_time_is_counted_in_seconds(monkeypatch):
    """A tenth of the time has gone for two batches with 6 units of work: the rest suffices for 54."""
    times = iter([1000.0, 1004.0, 1010.0])
    monkeypatch.setattr(schedule, "monotonic", lambda: next(times))
    pace = TimedPace(100.0)
    assert not pace.is_reported
    pace.advance(2.0)
    pace.advance(4.0)
    assert pace.done == pytest.approx(0.1)
    assert pace.left == pytest.approx(54)
    assert pace.is_planned


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
