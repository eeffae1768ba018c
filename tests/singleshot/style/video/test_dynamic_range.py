import numpy as np
import pytest

from singleshot.style.video.dynamic_range import HLG, PQ, is_wide, to_bt709

BT709, BT2020 = 1, 9


def shown(code, primaries, transfer):
    codes = np.full((1, 1, 3), round(code * 65535), np.uint16)
    return to_bt709(codes, primaries, transfer)[0, 0]


@pytest.mark.parametrize(
    ("code", "transfer", "expected"),
    [  # codes of light from ITU-R BT.2408, table 1; shown by a gamma of 2.4, where 203 cd/m2 are 0.9
        (0, PQ, 0),
        (0.508, PQ, (100 / 203) ** (1 / 2.4) * 255),
        (0.581, PQ, 0.9 ** (1 / 2.4) * 255),
        (0, HLG, 0),
        (0.75, HLG, 0.9 ** (1 / 2.4) * 255),
        (0.38, HLG, (26 / 203) ** (1 / 2.4) * 255),
    ],
)
def test_greys_are_those_of_their_light(code, transfer, expected):
    result = shown(code, BT2020, transfer)
    assert np.ptp(result) <= 1
    assert result.mean() == pytest.approx(expected, abs=3)


def test_highlights_are_compressed_in_order():
    peaks = [int(shown(code, BT2020, PQ)[0]) for code in (0.58, 0.65, 0.75, 0.9, 1.0)]
    assert peaks == sorted(peaks)
    assert peaks[0] < 245 < peaks[2] <= 255


def test_wide_primaries_become_bt709():
    """BT.709's red has these linear parts in BT.2020 (ITU-R BT.2087, table 2)."""
    red = np.array([0.6274, 0.0691, 0.0164]) ** (1 / 2.4)
    codes = (red * 65535).round().astype(np.uint16)[None, None]
    # Gamma in, as for any transfer function that is not of high dynamic range; full light is compressed.
    assert to_bt709(codes, BT2020, 14)[0, 0].astype(int) == pytest.approx(
        [0.9 ** (1 / 2.4) * 255, 0, 0], abs=6
    )
    assert is_wide(BT2020, 14)
    assert is_wide(BT709, PQ)
    assert not is_wide(BT709, BT709)
