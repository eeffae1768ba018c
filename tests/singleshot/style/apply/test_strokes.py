import pytest
import torch
from skimage.data import astronaut

from singleshot.style.apply import strokes as module
from singleshot.style.apply.strokes import brought_up, scaled_down, small_size
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.transformer_net import TransformerNet


def enlarged(photo, small, stylized):
    return torch.cat([band for _, band in brought_up(photo, small, stylized)], dim=1)


@pytest.fixture(scope="module")
def photo():
    return torch.from_numpy(astronaut()).permute(2, 0, 1)[:, :256, 60:380].contiguous()


@pytest.mark.parametrize(
    ("size", "stroke", "expected"),
    [
        ((3024, 4032), 1.0, (576, 768)),  # a telephone's 12 megapixels
        ((3024, 4032), 2.0, (288, 384)),
        ((4032, 3024), 0.5, (1536, 1152)),
        ((300, 400), 1.0, (300, 400)),  # smaller than its preview
        ((3024, 4032), None, (3024, 4032)),
        ((6, 8000), 1.0, (5, 768)),  # the network's smallest side
    ],
)
def test_a_stroke_is_as_large_as_in_the_preview(size, stroke, expected):
    assert small_size(*size, stroke) == expected


def test_what_is_fine_in_the_photo_comes_back(photo):
    """A style that changes nothing gives back the photo, sharper than any interpolation."""
    small = scaled_down(photo[None], (64, 80))[0]
    result = enlarged(photo, small, small / 255)
    cubic = torch.nn.functional.interpolate(small[None] / 255, (256, 320), mode="bicubic")[0]
    lost, blurred = ((x - photo / 255).abs().mean() for x in (result, cubic))
    assert lost < 0.6 * blurred


def test_bands_make_no_difference(photo, monkeypatch):
    small = scaled_down(photo[None], (64, 80))[0]
    stylized = small.flip(0) / 255
    whole = enlarged(photo, small, stylized)
    monkeypatch.setattr(module, "BAND_PX", 320 * 7)
    tops, bands = zip(*brought_up(photo, small, stylized), strict=True)
    assert tops == tuple(range(0, 256, 7))
    torch.testing.assert_close(torch.cat(bands, dim=1), whole, rtol=0, atol=2e-3)  # OpenCV's 1/32 px


def test_a_large_photo_looks_like_its_preview(photo, monkeypatch):
    monkeypatch.setattr(module, "SIDE_PX", 80)
    torch.manual_seed(0)
    network = TransformerNet(4).eval()
    float32 = StylizeSettings(precision="float32")
    preview = stylize(network, scaled_down(photo[None], (64, 80)), float32)
    result = stylize(network, photo[None], StylizeSettings(precision="float32", stroke=1.0))
    assert result.shape == photo[None].shape
    difference = scaled_down(result, (64, 80)).float() - preview
    plain = scaled_down(stylize(network, photo[None], float32), (64, 80)).float() - preview
    assert difference.abs().mean() < 0.4 * plain.abs().mean()
    assert difference.abs().mean() < 4
