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


def test_ssim_of_flat_pictures_is_their_luminance_term():
    # Without variance, (2 μ_x μ_y + C1) / (μ_x² + μ_y² + C1) with C1 = 0.01² is left (Wang et al. 2004).
    x, y = torch.full((3, 16, 16), 0.5), torch.full((3, 16, 16), 0.75)
    expected = (2 * 0.5 * 0.75 + 1e-4) / (0.5**2 + 0.75**2 + 1e-4)
    assert ssim(x, y) == pytest.approx(expected, rel=1e-5)


def test_lpips_agrees_with_the_authors_package(lpips):
    """What `lpips` 0.1.4 gave for these pictures, `normalize=True`, on torchvision's weights."""
    expected = {"alexnet": 0.57998126745224, "vgg16": 0.6998125314712524}
    u, v = torch.meshgrid(torch.linspace(0, 1, 64), torch.linspace(0, 1, 80), indexing="ij")
    distance = lpips(torch.stack([u, v, (u + v) / 2]), torch.stack([(20 * u).sin() / 2 + 0.5, v, u * v]))
    assert distance == pytest.approx(expected[lpips.backbone.architecture], rel=1e-5)


def test_a_file_that_has_no_heads_for_a_network_is_named(lpips, tmp_path):
    path = tmp_path / "heads.safetensors"
    save_file({"squeezenet.relu1": torch.ones(3)}, path)
    for broken in (path, tmp_path / "none.safetensors"):
        with pytest.raises(UserError, match=f"{broken}: no .*; fetch the heads"):
            load_lpips(lpips.backbone, broken)
