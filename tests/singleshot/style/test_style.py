import doctest
import subprocess
import sys

import numpy as np
import pytest
import torch
from icc_profiles import icc_profile
from PIL import Image
from small_networks import save_style

import singleshot.style
from singleshot.errors import UserError
from singleshot.style import Style
from singleshot.style import style as module
from singleshot.style.apply.light import bounded
from singleshot.style.apply.stylize import StylizeSettings, stylize


@pytest.fixture
def style(tmp_path):
    return Style.load(save_style(tmp_path / "model.safetensors", width=4))


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (40, 52, 3), np.uint8)


def test_a_result_is_of_the_kind_of_the_photo(style, pixels, tmp_path):
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    array = style(pixels, strength=0.5, stroke=None)
    picture = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    expected = stylize(style.network, picture, StylizeSettings(strength=0.5))[0].permute(1, 2, 0).numpy()
    expected = bounded(pixels, np.ascontiguousarray(expected))
    assert np.array_equal(array, expected)
    for photo in (Image.fromarray(pixels), tmp_path / "photo.png", str(tmp_path / "photo.png")):
        result = style(photo, strength=0.5, stroke=None)
        assert isinstance(result, Image.Image)
        assert np.array_equal(np.asarray(result), expected)


def test_a_pillow_image_is_what_its_file_shows(style, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    rgba = np.random.default_rng(0).integers(0, 256, (40, 52, 4), np.uint8)
    Image.fromarray(rgba).save(tmp_path / "a.png", exif=exif, icc_profile=icc_profile("RGB ", 2.2))
    Image.fromarray(rgba[..., 0].astype(np.uint16) * 257).save(tmp_path / "b.png")
    for path in (tmp_path / "a.png", tmp_path / "b.png"):
        with Image.open(path) as image:
            assert np.array_equal(style(image, strength=0.0), style(path, strength=0.0))


@pytest.mark.slow
def test_packages_that_styles_need_are_named():
    assert "Style" in dir(singleshot.style)
    code = "import sys; sys.modules['cv2'] = None; from singleshot.style import Style"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1].startswith("singleshot.errors.UserError: styles need more packages (")
    assert ran.stderr.endswith("pip install '.[style]' in the checkout\n")


def test_a_mistake_is_one_line(style, tmp_path):
    black = np.zeros((8, 8, 3), np.uint8)
    for call, said in (
        (lambda: style(np.zeros((8, 8, 3))), "float64"),
        (lambda: style(black[..., 0]), "uint8"),
        (lambda: style(black[:3, :3]), "5 or more"),
        (lambda: style("none.jpg"), r"none\.jpg: "),
        (lambda: style(None), "NoneType"),
        (lambda: style(black, strength="a"), "strength is 'a'"),
        (lambda: Style.load(None), "path is None"),
        (lambda: Style.load("wave"), "wave: no style; shipped are .*scream"),
        (lambda: Style.load(tmp_path / "other" / "model.safetensors"), r"model\.safetensors: no such file"),
        (lambda: style.save(tmp_path), "a folder"),
    ):
        with pytest.raises(UserError, match=said) as error:
            call()
        assert "\n" not in str(error.value)
    style.save(tmp_path / "new/model.safetensors")
    assert Style.load(tmp_path / "new").card == style.card


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(module).failed == 0
    assert not hasattr(singleshot.style, "Stile")
