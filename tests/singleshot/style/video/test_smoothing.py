import cv2
import numpy as np
import pytest
from moving_scenes import pan, smooth_noise

from singleshot.style.apply.light import grey
from singleshot.style.evaluation.warping_error import warping_error
from singleshot.style.video.smoothing import HISTORY, LEAD, TOLERANCE, optical_flow, smooth, targets, warp


def grey_frames(*levels, size=(48, 64)):
    return [np.full((*size, 3), level, np.uint8) for level in levels]


def test_a_still_scene_is_an_exponential_moving_average():
    original = grey_frames(100, 100, 100, 100)
    stylized = grey_frames(80, 160, 80, 240)
    # By hand: 80, (80 + 160) / 2 = 120, (120 + 80) / 2 = 100, (100 + 240) / 2 = 170
    assert [int(frame.max()) for frame in smooth(original, stylized)] == [80, 120, 100, 170]
    assert [int(frame.max()) for frame in smooth(original, stylized, history=0.25)] == [80, 140, 95, 204]


def test_the_less_the_original_stays_the_same_the_less_history_counts():
    original, stylized = grey_frames(100, 100 + int(TOLERANCE)), grey_frames(0, 200)
    _, frame = smooth(original, stylized)
    expected = 200 * (1 - HISTORY * np.exp(-0.5))
    assert frame == pytest.approx(expected, abs=0.51)


def test_a_cut_takes_nothing_over():
    before, after = np.zeros((48, 64, 3), np.uint8), np.full((48, 64, 3), 200, np.uint8)
    stylized = grey_frames(30, 90)
    assert np.array_equal(list(smooth([before, after], stylized)), stylized)


def test_flicker_falls_where_the_scene_moves():
    """Uniform noise of its own in each frame, on what moves as the scene does."""
    random = np.random.default_rng(1)
    original = pan(smooth_noise(), 8, dx=2)
    noise = random.normal(0, 20, (8, 48, 64, 3))
    stylized = [
        (255 - frame + z).clip(0, 255).astype(np.uint8) for frame, z in zip(original, noise, strict=True)
    ]
    before = warping_error(original, stylized).stylized
    after = warping_error(original, smooth(original, stylized)).stylized
    # The variance of differences of an exponential moving average of independent noise falls to
    # (1 - h)² / (1 + h) = 1/6. Interpolation, which the error before has too, leaves a little more.
    assert after < before / 3
    steady = [255 - frame for frame in original]
    assert np.abs(np.subtract(list(smooth(original, steady)), steady, dtype=float))[:, 8:-8, 8:-8].mean() < 1


def test_what_was_before_the_lead_is_forgotten():
    random = np.random.default_rng(2)
    original = pan(smooth_noise(), 4 + LEAD, dx=1)
    stylized = [random.integers(0, 256, frame.shape, np.uint8) for frame in original]
    *_, whole = smooth(original, stylized)
    *_, part = smooth(original[3:], stylized[3:])
    assert np.abs(whole.astype(int) - part).max() <= 2
    assert np.abs(whole.astype(int) - part).mean() < 0.5


def test_frames_too_small_for_optical_flow_stay_as_they_are():
    stylized = grey_frames(80, 160, size=(8, 8))
    assert np.array_equal(list(smooth(grey_frames(9, 9, size=(8, 8)), stylized)), stylized)


@pytest.mark.parametrize("preset", [cv2.DISOPTICAL_FLOW_PRESET_MEDIUM, cv2.DISOPTICAL_FLOW_PRESET_FAST])
def test_flow_of_a_translation_is_its_negative(preset):
    first, second = (grey(frame) for frame in pan(smooth_noise(), 2, dx=3, dy=2))
    flow = optical_flow(first, second, preset)[8:-8, 8:-8]
    np.testing.assert_allclose(np.median(flow, axis=(0, 1)), (-3, -2), atol=0.05)
    assert np.abs(flow - (-3, -2)).mean() < 0.1


def test_warping_reads_where_the_flow_points():
    picture = np.arange(12, dtype=np.float32).reshape(3, 4)
    flow = np.zeros((3, 4, 2), np.float32)
    flow[..., 0] = 0.5
    np.testing.assert_allclose(warp(picture, targets(flow))[:, :3], picture[:, :3] + 0.5)
    flow[..., 0], flow[..., 1] = 0, 1
    np.testing.assert_allclose(warp(picture, targets(flow))[:2], picture[1:])
