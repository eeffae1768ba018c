import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from skimage.color import rgb2yiq
from skimage.data import astronaut

from singleshot.errors import UserError
from singleshot.style.apply import stylize as module
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.transformer_net import TransformerNet

FLOAT32 = StylizeSettings(precision="float32")


@pytest.fixture
def network():
    torch.manual_seed(0)
    return TransformerNet(8).eval()


@pytest.fixture(scope="module")
def photos():
    """Three parts of a photo, of values well inside [0, 1]."""
    image = torch.from_numpy(astronaut()).permute(2, 0, 1) / 255
    return torch.stack([image[:, i : i + 48, i : i + 64] for i in (0, 100, 200)]) * 0.3 + 0.35


def test_strength_goes_from_the_photo_to_the_result(network, photos):
    assert torch.equal(stylize(network, photos, StylizeSettings(strength=0)), photos)
    full, half = stylize(network, photos), stylize(network, photos, StylizeSettings(strength=0.5))
    torch.testing.assert_close(half, (photos + full) / 2)
    assert (full - photos).abs().mean() > 0.1


@pytest.mark.parametrize(
    "wrong", [{"strength": -0.1}, {"strength": float("nan")}, {"stroke": 0}, {"stroke": 100}, {"stroke": "a"}]
)
def test_a_setting_out_of_range_is_named(wrong):
    with pytest.raises(UserError, match=f"{next(iter(wrong))} is .*number from"):
        StylizeSettings(**wrong)


def test_preserved_colour_is_the_photos_chroma_with_the_results_luma(network, photos):
    def yiq(pictures):
        return rgb2yiq(pictures.permute(0, 2, 3, 1).numpy())

    plain, preserved = (
        stylize(network, photos, StylizeSettings(preserve_color=keep)) for keep in (False, True)
    )
    inside = ((preserved > 0) & (preserved < 1)).all(dim=1).numpy()
    assert inside.mean() > 0.3
    assert_allclose(yiq(preserved)[inside][:, 1:], yiq(photos)[inside][:, 1:], atol=1e-4)
    assert_allclose(yiq(preserved)[inside][:, 0], yiq(plain)[inside][:, 0], atol=1e-4)
    assert np.abs(yiq(plain)[inside][:, 1:] - yiq(photos)[inside][:, 1:]).mean() > 0.02


def test_bytes_give_bytes(network, photos):
    pixels = photos.mul(255).round().byte()
    result = stylize(network, pixels, StylizeSettings(strength=0.7))
    assert result.dtype == torch.uint8
    expected = stylize(network, pixels / 255, StylizeSettings(strength=0.7)) * 255
    assert (result - expected).abs().max() <= 0.51
    assert torch.equal(stylize(network, pixels, StylizeSettings(strength=0)), pixels)


@pytest.mark.parametrize("whole_px", [48 * 64 * 2, 48 * 64 - 1])
def test_batches_and_tiles_change_nothing(network, photos, monkeypatch, whole_px):
    settings = StylizeSettings(strength=0.8, preserve_color=True, precision="float32")
    at_once = stylize(network, photos, settings)
    monkeypatch.setattr(module, "CPU_WHOLE_PX", whole_px)
    monkeypatch.setattr(module, "CPU_TILE_PX", 64 * 10)
    torch.testing.assert_close(stylize(network, photos, settings), at_once, rtol=0, atol=2e-5)


def test_bfloat16_is_near_float32(network, photos):
    bfloat16 = StylizeSettings(precision="bfloat16")
    difference = stylize(network, photos, bfloat16) - stylize(network, photos, FLOAT32)
    assert 0 < difference.abs().mean() < 2 / 255  # trained networks: 0.2 to 0.4 / 255


def test_what_does_not_fit_as_a_whole_is_tiled(network, photos, monkeypatch):
    expected, calls = stylize(network, photos, FLOAT32), []

    def forward(pictures):
        calls.append(len(pictures))
        raise torch.OutOfMemoryError

    monkeypatch.setattr(network, "forward", forward)
    result = stylize(network, photos, FLOAT32)
    assert calls == [3]
    torch.testing.assert_close(result, expected, rtol=0, atol=2e-5)


def test_little_memory_makes_small_tiles(network, photos, monkeypatch):
    expected, tiles = stylize(network, photos, FLOAT32), []
    stylized_bands = module.stylized_bands
    monkeypatch.setattr(module, "free_memory", lambda device: 2 * 8 * module.TILE_BYTES * 64 * 4)
    monkeypatch.setattr(
        module, "stylized_bands", lambda n, p, tile: tiles.append(tile.rows) or stylized_bands(n, p, tile)
    )
    torch.testing.assert_close(stylize(network, photos, FLOAT32), expected, rtol=0, atol=2e-5)
    assert tiles == [4, 4, 4]
