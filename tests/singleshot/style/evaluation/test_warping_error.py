import numpy as np
import pytest
from moving_scenes import pan, smooth_noise

from singleshot.errors import UserError
from singleshot.style.evaluation.warping_error import visible, warping_error


@pytest.fixture
def scene():
    return smooth_noise()


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


@pytest.mark.parametrize("dx", [0, 2])
def test_constant_flicker_by_hand(scene, dx):
    """Every other frame of the stylised video is 51/255 = 0.2 brighter: E = 3·0.2² = 0.12."""
    original = pan(scene, 4, dx=dx)
    stylized = [np.full_like(frame, 100 + 51 * (n % 2)) for n, frame in enumerate(original)]
    error = warping_error(iter(original), iter(stylized))
    assert error.original == pytest.approx(0, abs=1e-6 if dx == 0 else 1e-3)
    assert error.stylized == pytest.approx(0.12, rel=1e-5)
    assert dx == 0 or error.relative == error.stylized / error.original > 100


def test_videos_that_do_not_belong_together(scene):
    video = pan(scene, 3, dx=1)
    small = [frame[:8, :8] for frame in video]
    for original, stylized, named in (
        (video, video[:2], "stylised video .* 2 frames"),
        (video[:2], video, "original video .* 2 frames"),
        (video, [frame[:-1] for frame in video], "frame 0"),
        (video[:1], video[:1], "two frames in a row"),
        (small, small, "too small"),
    ):
        with pytest.raises(UserError, match=named):
            warping_error(original, stylized)


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
