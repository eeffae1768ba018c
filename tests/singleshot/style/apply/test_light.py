from itertools import pairwise

import numpy as np
from numpy.testing import assert_array_equal

from singleshot.style.apply.light import CONTRAST, bounded

RNG = np.random.default_rng(0)
SCENE = RNG.integers(0, 256, (40, 60, 3), np.uint8)
STYLISED = RNG.integers(0, 256, (40, 60, 3), np.uint8)


def luma(frame):
    return frame @ np.array([0.299, 0.587, 0.114])


def test_a_result_within_the_bounds_stays_as_it_is():
    assert_array_equal(bounded(SCENE, SCENE), SCENE)
    bright = np.full_like(SCENE, 60)
    bright[:20], bright[20:, :30] = 0, 255
    grey = np.full_like(SCENE, 127)
    grey[:18] = 0
    assert_array_equal(bounded(bright, grey), grey)


def test_a_fade_to_black_is_one():
    means = [
        luma(bounded((SCENE * a).round().astype(np.uint8), STYLISED)).mean() for a in np.linspace(1, 0, 9)
    ]
    assert means[0] > 100
    assert means[-1] == 0
    assert all(after < before + 1 for before, after in pairwise(means))
    assert means[6] < 0.4 * means[0]


def test_contrast_is_bounded():
    fog = (118 + SCENE * (20 / 255)).round().astype(np.uint8)
    result = luma(bounded(fog, STYLISED))
    own = luma(fog)
    assert np.ptp(result) <= CONTRAST * np.ptp(own) + 2
    assert abs(result.mean() - own.mean()) < 0.2 * np.ptp(own)


def test_bars_stay_black_beside_light():
    letterbox = SCENE.copy()
    letterbox[:10] = letterbox[-10:] = 0
    result = bounded(letterbox, STYLISED)
    assert result[:8].max() == result[-8:].max() == 0
    assert_array_equal(result[14:-14], STYLISED[14:-14])
