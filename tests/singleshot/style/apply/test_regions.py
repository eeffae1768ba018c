import numpy as np
import pytest
import torch
from PIL import Image
from skimage.data import astronaut, coffee, immunohistochemistry

from singleshot.errors import UserError
from singleshot.style.apply.regions import find_faces, placed, read_mask, within
from singleshot.style.apply.stylize import StylizeSettings

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
    placed = within(ORIGINAL, RESULT, read_mask(mask, invert=invert), [])
    assert (placed[:, :29] == left).all()
    assert (placed[:, 31:] == right).all()


def test_grey_is_a_half_and_no_mask_is_everywhere(tmp_path):
    Image.new("L", (3, 2), 128).save(tmp_path / "grey.png")
    placed = within(ORIGINAL, RESULT, read_mask(tmp_path / "grey.png", invert=False), [])
    assert np.abs(placed.astype(int) - 125).max() <= 1
    assert within(ORIGINAL, RESULT, None, []) is RESULT
    with pytest.raises(UserError, match=r"none\.png: "):
        read_mask(tmp_path / "none.png", invert=False)


def test_a_face_stays_and_the_rest_does_not(capsys):
    """Eileen Collins' face is around (225, 115), 130 px high, in the middle of the top."""
    photo = np.ascontiguousarray(astronaut())
    pixels = torch.from_numpy(photo).permute(2, 0, 1)[None]
    (result,) = placed(pixels, 255 - pixels, StylizeSettings(keep_faces=True), "photo.png")
    assert capsys.readouterr().err == "photo.png: 1 face kept\n"
    changed = np.abs(result.permute(1, 2, 0).numpy().astype(int) - photo)
    assert changed[115, 225].max() <= 12
    assert changed[:, 400:].max() > 100
    assert changed[400:].max() > 100
    placed_whole = within(photo, 255 - photo, None, find_faces(photo))
    assert (placed_whole[450:] == 255 - photo[450:]).all()
    assert 0.01 < (placed_whole != 255 - photo).mean() < 0.15


@pytest.mark.parametrize("photo", [coffee, immunohistochemistry])
def test_cups_and_cells_have_no_face(photo):
    assert find_faces(np.ascontiguousarray(photo())) == []


def test_a_small_picture_has_no_face():
    assert find_faces(ORIGINAL[:10]) == []
