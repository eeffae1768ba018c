import cv2
import numpy as np
import pytest
from PIL import Image
from skimage.data import astronaut, coffee

from singleshot.errors import UserError
from singleshot.style.apply.regions import faces, read_mask, within

ORIGINAL = np.full((40, 60, 3), 50, np.uint8)
RESULT = np.full((40, 60, 3), 200, np.uint8)


@pytest.fixture
def mask(tmp_path):
    """White on the left, black on the right, at twice the size of the pictures."""
    picture = np.zeros((80, 120), np.uint8)
    picture[:, :60] = 255
    Image.fromarray(picture).save(tmp_path / "mask.png")
    return tmp_path / "mask.png"


@pytest.mark.parametrize(("invert", "left", "right"), [(False, 200, 50), (True, 50, 200)])
def test_the_style_goes_where_the_mask_is_white(mask, invert, left, right):
    placed = within(ORIGINAL, RESULT, read_mask(mask, invert=invert), keep_faces=False)
    assert (placed[:, :29] == left).all()
    assert (placed[:, 31:] == right).all()


def test_grey_is_a_half_and_no_mask_is_everywhere(tmp_path):
    Image.new("L", (3, 2), 128).save(tmp_path / "grey.png")
    placed = within(ORIGINAL, RESULT, read_mask(tmp_path / "grey.png", invert=False), keep_faces=False)
    assert np.abs(placed.astype(int) - 125).max() <= 1
    assert within(ORIGINAL, RESULT, None, keep_faces=False) is RESULT
    with pytest.raises(UserError, match=r"none\.png: "):
        read_mask(tmp_path / "none.png", invert=False)


def test_a_face_stays_and_the_rest_does_not():
    """Eileen Collins' face is around (225, 115), 130 px high, in the middle of the top."""
    photo = np.ascontiguousarray(astronaut())
    share = faces(photo)
    assert share[115, 225] > 0.95
    assert share[400:].max() == 0
    assert share[:, 400:].max() < 0.05
    assert 0.01 < share.mean() < 0.15
    placed = within(photo, 255 - photo, None, keep_faces=True)
    assert np.abs(placed[115, 225].astype(int) - photo[115, 225]).max() <= 12
    assert (placed[450:] == 255 - photo[450:]).all()


def test_a_cup_has_no_face_and_a_small_picture_none():
    assert faces(cv2.resize(coffee(), None, fx=0.5, fy=0.5)).max() == 0
    assert faces(ORIGINAL[:10]).max() == 0
