from pathlib import Path

import pytest
import torch
from torch import nn

from singleshot.style.precision import autocast, channels_last, resolve


def test_auto_is_what_the_processor_has():
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        pytest.skip("the kernel's list of a processor's instructions is Linux's")
    flags = set(cpuinfo.read_text(encoding="utf-8").split())
    expected = torch.bfloat16 if flags & {"amx_bf16", "avx512_bf16"} else torch.float32
    assert resolve("auto", "cpu") == expected


def test_a_named_precision_is_taken():
    assert resolve("float32", "cpu") == torch.float32
    assert resolve("bfloat16", "cpu") == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convolutions_run_in_it_and_weights_stay(dtype):
    convolution = nn.Conv2d(3, 4, 3)
    with autocast("cpu", dtype):
        y = convolution(torch.rand(1, 3, 8, 8))
    assert y.dtype == dtype
    y.float().sum().backward()
    assert convolution.weight.dtype == convolution.weight.grad.dtype == torch.float32


def test_channels_last_keeps_the_values():
    convolution = nn.Conv2d(3, 4, 3)
    weight = convolution.weight.detach().clone()
    assert channels_last(convolution).weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(convolution.weight, weight)
