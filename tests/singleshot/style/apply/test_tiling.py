import os
import resource

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from singleshot.errors import UserError
from singleshot.style.apply import tiling
from singleshot.style.apply.tiling import Tile, free_memory, stylized_bands
from singleshot.style.transformer_net import TransformerNet

OUT_OF_MEMORY = "[enforce fail at alloc_cpu.cpp:130] . DefaultCPUAllocator: can't allocate memory"


@pytest.fixture
def network():
    """With norms that scale and shift each channel differently, as trained ones do."""
    torch.manual_seed(0)
    network = TransformerNet(8).eval()
    for module in network.modules():
        if isinstance(module, nn.InstanceNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.uniform_(module.bias, -1, 1)
    return network


def a_picture(height, width):
    """Noise over a gradient: its parts differ in mean and variance."""
    generator = torch.Generator().manual_seed(height * width)
    slope = torch.linspace(0, 1, height).view(1, 1, -1, 1)
    return slope * torch.rand(1, 3, height, width, generator=generator)


def joined(network, picture, rows):
    bands = list(stylized_bands(network, picture, Tile(rows)))
    assert [top for top, _ in bands] == [
        sum(band.shape[2] for _, band in bands[:i]) for i in range(len(bands))
    ]
    return torch.cat([band for _, band in bands], dim=2)


@pytest.mark.parametrize("size", [(64, 64), (67, 93), (5, 5), (7, 130), (131, 37)])
@pytest.mark.parametrize("rows", [1, 7, 32, 500])
def test_tiles_equal_the_whole_picture(network, size, rows):
    picture = a_picture(*size)
    with torch.inference_mode():
        whole = network(picture)
    torch.testing.assert_close(joined(network, picture, rows), whole, rtol=0, atol=2e-5)


def test_bfloat16_is_kept_between_layers(network):
    picture = a_picture(48, 48)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        whole = network(picture)
        tiled = joined(network, picture, rows=16)
    assert tiled.dtype == whole.dtype
    assert (tiled.float() - whole.float()).abs().mean() < 0.01


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that is made inside."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def largest_tensor(network, height, rows):
    picture = torch.rand(1, 3, height, 32)
    with Largest() as largest:
        for _ in stylized_bands(network, picture, Tile(rows)):
            pass
    return largest.elements


def test_memory_grows_with_the_tile_and_not_with_the_picture(network):
    low, high = largest_tensor(network, 128, rows=8), largest_tensor(network, 1024, rows=8)
    assert low == high
    assert 1.5 * high < largest_tensor(network, 1024, rows=32) < 4 * high
    picture = torch.rand(1, 3, 1024, 32)
    with Largest() as whole, torch.inference_mode():
        network(picture)
    assert whole.elements > 25 * high


def test_nothing_is_left_of_the_files(network, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    opened = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    bands = stylized_bands(network, a_picture(32, 32), Tile(8))
    next(bands)
    assert len(os.listdir("/proc/self/fd")) > opened  # noqa: PTH208
    bands.close()
    joined(network, a_picture(32, 32), rows=8)
    assert len(os.listdir("/proc/self/fd")) == opened  # noqa: PTH208
    assert not list(tmp_path.iterdir())


def limited(monkeypatch, rows, error):
    """Let convolutions of more than `rows` rows fail."""
    convolve = functional.conv2d

    def conv2d(x, *args):
        if x.shape[2] > rows:
            raise error
        return convolve(x, *args)

    monkeypatch.setattr(functional, "conv2d", conv2d)


@pytest.mark.parametrize("error", [RuntimeError(OUT_OF_MEMORY), torch.OutOfMemoryError(), MemoryError()])
def test_tiles_are_halved_when_memory_runs_out(network, monkeypatch, error):
    picture, tile = a_picture(64, 40), Tile(64)
    with torch.inference_mode():
        whole = network(picture)
    limited(monkeypatch, 24, error)
    tiled = torch.cat([band for _, band in stylized_bands(network, picture, tile)], dim=2)
    assert tile.rows == 8  # 16 and the 9 - 1 around them would do, but a stride of two takes 33 for 16
    torch.testing.assert_close(tiled, whole, rtol=0, atol=2e-5)


def test_no_memory_for_one_row_is_told(network, monkeypatch):
    limited(monkeypatch, 2, RuntimeError(OUT_OF_MEMORY))
    with pytest.raises(UserError, match="tiles of one row"):
        joined(network, a_picture(32, 32), rows=16)


def test_a_full_disk_is_told(network, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(UserError, match=f"{tmp_path}: .*set TMPDIR"):
            joined(network, a_picture(64, 64), rows=8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_memory_is_what_the_container_has_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tiling, "CGROUP", tmp_path)
    for limit, expected in (("", None), ("max", None), ("9000", 5000)):
        (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 1000\n")
        (tmp_path / "memory.current").write_text("5000\n")
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        free = free_memory(torch.device("cpu"))
        assert free == expected if expected else free > 1 << 24
