import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tasks.data.images import read_rgb
from tasks.data.packages import Package, fetch_package, read_member
from tasks.errors import UserError
from tasks.style.backbones import Backbone
from tasks.style.datasets.weights import read_backbone, read_lpips_heads
from tasks.style.evaluation.metrics import (
    LPIPS,
    Representation,
    content_loss,
    load_lpips,
    represent,
    ssim,
    style_loss,
    style_ratio,
)

AUTHORS_LPIPS = Package("lpips", "0.1.4", "fd537af5828b69d2e6ffc0a397bd506dbc28ca183543617690844c08e102ec5e")
DATA = Path(__file__).parents[5] / "shared/data"


@pytest.fixture(scope="module")
def vgg16() -> Backbone:
    return read_backbone("vgg16", "packages")[0]


@pytest.fixture(scope="module", params=["alexnet", "vgg16"])
def lpips(request: pytest.FixtureRequest) -> LPIPS:
    backbone = read_backbone(request.param, "packages")[0]
    heads = {
        key.split(".")[1]: w for key, w in read_lpips_heads()[0].items() if key.startswith(request.param)
    }
    return LPIPS(backbone, heads)


def _gradients() -> tuple[Tensor, Tensor]:
    u, v = torch.meshgrid(torch.linspace(0, 1, 64), torch.linspace(0, 1, 80), indexing="ij")
    return torch.stack([u, v, (u + v) / 2]), torch.stack([(20 * u).sin() / 2 + 0.5, v, u * v])


def _noise(seed: int) -> Tensor:
    return torch.rand(3, 48, 64, generator=torch.Generator().manual_seed(seed))


class TestStyleRatio:
    def test_of_photo_is_one_and_of_painting_zero(self, vgg16: Backbone) -> None:
        photo, painting = (represent(vgg16, picture) for picture in _gradients())
        assert style_ratio(photo, photo, painting) == 1
        assert style_ratio(painting, photo, painting) == 0

    def test_sums_squares_over_layers(self) -> None:
        def of(*grams: float) -> Representation:
            style = {str(i): torch.full((1, 2, 2), float(G)) for i, G in enumerate(grams)}
            return Representation(torch.zeros(1), style)

        # Four entries a layer: 4 (1² + 2²) = 20 is left of 4 (3² + 4²) = 100.
        stylized, photo, painting = of(1, 2), of(3, 4), of(0, 0)
        assert style_loss(stylized, painting) == 20
        assert style_ratio(stylized, photo, painting) == pytest.approx(0.2)

    def test_does_not_depend_on_the_paintings_size(self, vgg16: Backbone) -> None:
        # A texture without end: half of it has the same style, but for its border.
        texture = _noise(0)[:, :16, :16].tile(1, 12, 12)
        photo = represent(vgg16, _gradients()[0])
        whole, half = represent(vgg16, texture), represent(vgg16, texture[:, :96])
        assert style_loss(half, whole) < 0.01 * style_loss(photo, whole)


def test_content_loss_is_the_mean_square_of_relu2_2(vgg16: Backbone) -> None:
    x, y = _noise(0), _noise(1)
    φ_x, φ_y = (vgg16(picture[None], ["relu2_2"])["relu2_2"].numpy() for picture in (x, y))
    expected = ((φ_x - φ_y) ** 2).sum() / (128 * 24 * 32)
    assert float(content_loss(represent(vgg16, x), represent(vgg16, y))) == pytest.approx(expected, rel=1e-5)
    assert content_loss(represent(vgg16, x), represent(vgg16, x)) == 0


@pytest.mark.skipif(not (DATA / "photos").is_dir(), reason="no COCO photos beside the checkout")
def test_gram_matrices_are_on_a_known_scale(vgg16: Backbone) -> None:
    """Other code found COCO crops of 256 px at 2.66e-4 from Hokusai's wave: a layer's mean square, summed."""
    painting = represent(vgg16, read_rgb(DATA / "paintings/wave.jpg", short_side=256))
    crops = [
        read_rgb(path, short_side=256)[:, :256, :256] for path in sorted((DATA / "photos").glob("*.jpg"))[:4]
    ]
    distances = [
        sum(
            float((G - painting.style[layer]).square().mean())
            for layer, G in represent(vgg16, crop).style.items()
        )
        for crop in crops
    ]
    assert np.mean(distances) == pytest.approx(2.66e-4, rel=0.3)


class TestSsim:
    def test_of_equal_pictures_is_one(self) -> None:
        x, _ = _gradients()
        assert ssim(x, x) == pytest.approx(1)

    def test_of_flat_pictures_is_their_luminance_term(self) -> None:
        # Without variance, (2 μ_x μ_y + C1) / (μ_x² + μ_y² + C1) with C1 = 0.01² is left (Wang et al. 2004).
        x, y = torch.full((3, 16, 16), 0.5), torch.full((3, 16, 16), 0.75)
        expected = (2 * 0.5 * 0.75 + 1e-4) / (0.5**2 + 0.75**2 + 1e-4)
        assert ssim(x, y) == pytest.approx(expected, rel=1e-5)


class TestLpips:
    def test_of_equal_pictures_is_zero(self, lpips: LPIPS) -> None:
        assert lpips(_noise(0), _noise(0)) == 0

    def test_is_symmetric(self, lpips: LPIPS) -> None:
        assert lpips(_noise(0), _noise(1)) == pytest.approx(lpips(_noise(1), _noise(0)), rel=1e-5)

    def test_grows_with_distortion(self, lpips: LPIPS) -> None:
        x, _ = _gradients()
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        distances = [lpips(x, x + σ * noise) for σ in (0.02, 0.05, 0.1, 0.2)]
        assert distances == sorted(distances)
        assert distances[0] > 0

    def test_agrees_with_the_authors_package(self, lpips: LPIPS) -> None:
        """What `lpips` 0.1.4 gave for these pictures, `normalize=True`, on torchvision's weights."""
        expected = {"alexnet": 0.57998126745224, "vgg16": 0.6998125314712524}
        assert lpips(*_gradients()) == pytest.approx(expected[lpips.backbone.architecture], rel=1e-5)

    def test_heads_are_those_of_the_authors_package(self, lpips: LPIPS) -> None:
        file = {"alexnet": "alex", "vgg16": "vgg"}[lpips.backbone.architecture]
        content = read_member(fetch_package(AUTHORS_LPIPS), f"lpips/weights/v0.1/{file}.pth")
        published = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        for w, expected in zip(lpips.heads.values(), published.values(), strict=True):
            assert torch.equal(w, expected.flatten())

    def test_by_hand(self) -> None:
        class Taps:
            """Two channels, one position: (3, 4) of the first picture, (0, 5) of the second."""

            def __call__(self, pictures: Tensor, layers: object) -> dict[str, Tensor]:
                return {"tap": torch.tensor([[3.0, 4.0], [0.0, 5.0]]).view(2, 2, 1, 1)}

        # Unit vectors (0.6, 0.8) and (0, 1): 2 · 0.36 + 3 · 0.04.
        distance = LPIPS(Taps(), {"tap": torch.tensor([2.0, 3.0])})(_noise(0), _noise(1))  # type: ignore[arg-type]
        assert distance == pytest.approx(0.84)

    def test_black_pictures_are_finite(self, lpips: LPIPS) -> None:
        assert math.isfinite(lpips(torch.zeros(3, 48, 48), torch.ones(3, 48, 48)))

    def test_names_a_file_that_is_none(self, lpips: LPIPS, tmp_path: Path) -> None:
        path = tmp_path / "heads.safetensors"
        for content in (None, b"no weights"):
            if content:
                path.write_bytes(content)
            with pytest.raises(UserError, match=r"heads\.safetensors: not LPIPS' heads"):
                load_lpips(lpips.backbone, path)
        save_file({"squeezenet.relu1": torch.ones(3)}, path)
        with pytest.raises(UserError, match="no heads for"):
            load_lpips(lpips.backbone, path)
