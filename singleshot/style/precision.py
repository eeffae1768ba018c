"""The arithmetic that a network runs in."""

from contextlib import AbstractContextManager
from typing import Literal, TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)

Precision = Literal["auto", "float32", "bfloat16"]
"""`auto` is bfloat16 where the hardware has instructions for it, else float32."""


def resolve(precision: Precision, device: str) -> torch.dtype:
    """The type that `precision` means on `device`."""
    if precision == "auto":
        return torch.bfloat16 if _has_bfloat16(device) else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]


def autocast(device: str, dtype: torch.dtype) -> AbstractContextManager:
    """A context in which convolutions and matrix products run in `dtype`; weights stay as they are."""
    return torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32)


def channels_last(network: Module) -> Module:
    """The network with weights laid out for maps that keep a pixel's channels side by side in memory."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _has_bfloat16(device: str) -> bool:
    """Whether there are bfloat16 instructions; without them, a processor emulates it, slower than float32."""
    if torch.device(device).type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "AVX2"):  # the most that PyTorch may use
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
