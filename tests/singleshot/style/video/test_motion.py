import cv2
import numpy as np
import pytest
from moving_scenes import pan, smooth_noise

from singleshot.style.video.smoothing import grey, optical_flow, targets, warp


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
