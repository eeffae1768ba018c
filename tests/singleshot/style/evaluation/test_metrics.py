import pytest
import torch
from safetensors.torch import save_file

from singleshot.errors import UserError
from singleshot.style.datasets.weights import read_backbone, read_lpips_heads
from singleshot.style.evaluation.metrics import LPIPS, load_lpips, ssim


@pytest.fixture(scope="module", params=["alexnet", "vgg16"])
def lpips(request):
    backbone = read_backbone(request.param, "packages")[0]
    heads = {
        key.split(".")[1]: w for key, w in read_lpips_heads()[0].items() if key.startswith(request.param)
    }
    return LPIPS(backbone, heads)


def _gradients():
    u, v = torch.meshgrid(torch.linspace(0, 1, 64), torch.linspace(0, 1, 80), indexing="ij")
    return torch.stack([u, v, (u + v) / 2]), torch.stack([(20 * u).sin() / 2 + 0.5, v, u * v])


def _noise(seed):
    return torch.rand(3, 48, 64, generator=torch.Generator().manual_seed(seed))


class TestSsim:
    def test_of_flat_pictures_is_their_luminance_term(self):
        # Without variance, (2 μ_x μ_y + C1) / (μ_x² + μ_y² + C1) with C1 = 0.01² is left (Wang et al. 2004).
        x, y = torch.full((3, 16, 16), 0.5), torch.full((3, 16, 16), 0.75)
        expected = (2 * 0.5 * 0.75 + 1e-4) / (0.5**2 + 0.75**2 + 1e-4)
        assert ssim(x, y) == pytest.approx(expected, rel=1e-5)


class TestLpips:
    def test_agrees_with_the_authors_package(self, lpips):
        """What `lpips` 0.1.4 gave for these pictures, `normalize=True`, on torchvision's weights."""
        expected = {"alexnet": 0.57998126745224, "vgg16": 0.6998125314712524}
        assert lpips(*_gradients()) == pytest.approx(expected[lpips.backbone.architecture], rel=1e-5)

    def test_by_hand(self):
        class Taps:
            """Two channels, one position: (3, 4) of the first picture, (0, 5) of the second."""

            def __call__(self, pictures, layers):
                return {"tap": torch.tensor([[3.0, 4.0], [0.0, 5.0]]).view(2, 2, 1, 1)}

        # Unit vectors (0.6, 0.8) and (0, 1): 2 · 0.36 + 3 · 0.04.
        distance = LPIPS(Taps(), {"tap": torch.tensor([2.0, 3.0])})(_noise(0), _noise(1))  # type: ignore[arg-type]
        assert distance == pytest.approx(0.84)

    def test_names_a_file_that_is_none(self, lpips, tmp_path):
        path = tmp_path / "heads.safetensors"
        with pytest.raises(UserError, match=r"heads\.safetensors: no such file; run the stage pictures"):
            load_lpips(lpips.backbone, path)
        path.write_bytes(b"no weights")
        with pytest.raises(UserError, match=r"heads\.safetensors: not a whole .*; run the stage"):
            load_lpips(lpips.backbone, path)
        save_file({"squeezenet.relu1": torch.ones(3)}, path)
        with pytest.raises(UserError, match="no heads for"):
            load_lpips(lpips.backbone, path)
