import math

import cv2
import numpy as np
import pytest

from tasks.errors import UserError
from tasks.style.evaluation.flow import optical_flow, visible, warp, warping_error


@pytest.fixture
def scene():
    """Smooth noise, 120x160: enough detail to follow, none that interpolation would lose."""
    noise = np.random.default_rng(0).uniform(0, 255, (120, 160, 3)).astype(np.float32)
    return cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 3), None, 0, 255, cv2.NORM_MINMAX)


def pan(scene, frames, dx, dy=0):
    """A camera that moves over the scene by whole pixels a frame: 64x48."""
    windows = [scene[20 + n * dy : 68 + n * dy, 20 + n * dx : 84 + n * dx] for n in range(frames)]
    return [window.round().astype(np.uint8) for window in windows]


def test_flow_of_a_translation_is_its_negative(scene):
    first, second = pan(scene, 2, dx=3, dy=2)
    flow = optical_flow(first, second)[8:-8, 8:-8]
    np.testing.assert_allclose(np.median(flow, axis=(0, 1)), (-3, -2), atol=0.05)
    assert np.abs(flow - (-3, -2)).mean() < 0.1


def test_warping_reads_where_the_flow_points():
    picture = np.arange(12, dtype=np.float32).reshape(3, 4)
    flow = np.zeros((3, 4, 2), np.float32)
    flow[..., 0] = 0.5
    np.testing.assert_allclose(warp(picture, flow)[:, :3], picture[:, :3] + 0.5)
    flow[..., 0], flow[..., 1] = 0, 1
    np.testing.assert_allclose(warp(picture, flow)[:2], picture[1:])


def test_visible_by_hand():
    """4x8 pixels that go right by 2; where the way back doesn't lead home, they are covered up there."""
    forward = np.zeros((4, 8, 2), np.float32)
    forward[..., 0] = 2
    backward = -forward
    M = visible(forward, backward)
    assert M[:, :6].all()
    assert not M[:, 6:].any()  # they leave the picture
    backward[:, 5, 0] = 0  # |2 + 0|² = 4 > 0.01·4 + 0.5
    assert (visible(forward, backward) == (np.arange(8) < 6) & (np.arange(8) != 3)).all()
    backward[:, 5, 0] = -1.3  # |2 - 1.3|² = 0.49 < 0.01·(4 + 1.69) + 0.5
    assert (visible(forward, backward) == (np.arange(8) < 6)).all()


def test_edges_of_motion_are_not_visible():
    forward = np.zeros((4, 16, 2), np.float32)
    forward[:, 8:, 0] = 1  # np.gradient is 0.5 in columns 7 and 8: 0.25 > 0.01·w² + 0.002
    backward = np.zeros_like(forward)
    backward[:, 9:, 0] = -1
    assert (visible(forward, backward)[0] == [*[True] * 7, False, False, *[True] * 6, False]).all()


def test_a_video_that_moves_as_its_original_has_no_error(scene):
    original = pan(scene, 5, dx=2)
    inverted = [255 - frame for frame in original]
    error = warping_error(original, inverted)
    assert error.original < 1e-4
    assert error.relative == pytest.approx(1, rel=1e-4)


def test_constant_flicker_by_hand(scene):
    """A still video; every other frame of its stylised one is 51/255 = 0.2 brighter: E = 3·0.2² = 0.12."""
    original = pan(scene, 1, dx=0) * 4
    stylized = [np.full_like(frame, 100 + 51 * (n % 2)) for n, frame in enumerate(original)]
    error = warping_error(iter(original), iter(stylized))
    assert error.original == pytest.approx(0, abs=1e-6)
    assert error.stylized == pytest.approx(0.12, rel=1e-5)


def test_flicker_under_motion_by_hand(scene):
    original = pan(scene, 4, dx=2)
    stylized = [np.full_like(frame, 100 + 51 * (n % 2)) for n, frame in enumerate(original)]
    error = warping_error(original, stylized)
    assert error.stylized == pytest.approx(0.12, rel=1e-5)
    assert error.relative == error.stylized / error.original > 100


def test_of_no_error_there_is_no_relative(scene):
    still = pan(scene, 1, dx=0) * 2
    grey = [np.full_like(frame, 7) for frame in still]
    error = warping_error(grey, grey)
    assert error.original == error.stylized == 0
    assert math.isnan(error.relative)


def test_videos_that_do_not_belong_together(scene):
    original = pan(scene, 3, dx=1)
    with pytest.raises(UserError, match="stylised video ends after 2 frames"):
        warping_error(original, original[:2])
    with pytest.raises(UserError, match="original video ends after 2 frames"):
        warping_error(original[:2], original)
    with pytest.raises(UserError, match="frame 0 has shape"):
        warping_error(original, [frame[:-1] for frame in original])
    with pytest.raises(UserError, match="no two consecutive frames"):
        warping_error(original[:1], original[:1])
    with pytest.raises(UserError, match="too small"):
        warping_error([frame[:8, :8] for frame in original], [frame[:8, :8] for frame in original])


def test_frames_are_streamed(scene):
    """Of a video only the pair at hand is asked for."""
    asked = []

    def frames():
        for n, frame in enumerate(pan(scene, 3, dx=1)):
            asked.append(n)
            yield frame
        raise UserError("damaged here")

    with pytest.raises(UserError, match="damaged here"):
        warping_error(frames(), pan(scene, 9, dx=1))
    assert asked == [0, 1, 2]
