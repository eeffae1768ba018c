from pathlib import Path

import pytest
import torch
from torch import nn

from singleshot.style.precision import autocast, resolve


def test_auto_is_what_the_processor_has():
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        pytest.skip("the kernel's list of a processor's instructions is Linux's")
    flags = set(cpuinfo.read_text(encoding="utf-8").split())
    expected = torch.bfloat16 if flags & {"amx_bf16", "avx512_bf16"} else torch.float32
    assert resolve("auto", "cpu") == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convolutions_run_in_it_and_weights_stay(dtype):
    convolution = nn.Conv2d(3, 4, 3)
    with autocast("cpu", dtype):
        y = convolution(torch.rand(1, 3, 8, 8))
    assert y.dtype == dtype
    y.float().sum().backward()
    assert convolution.weight.dtype == convolution.weight.grad.dtype == torch.float32
