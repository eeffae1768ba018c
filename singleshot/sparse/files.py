"""Files of any pruned network in as few bytes as its kept weights need."""

import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from singleshot.errors import must_be
from singleshot.io.tensor_file import TensorFile, writing
from singleshot.sparse import packed

BYTES_OF_AN_ENTRY = 8
"""Of memory, for each entry of a tensor: its number, its place in the mask, and a copy."""


def pack(model: nn.Module, path: str | Path, values: packed.ValuesName = "raw") -> None:
    """Write the `state_dict` of a model with the positions and values of its weights that are not 0.

    `values` is `raw` or `exponents`, which keep every bit, or `fp16` or `int8`, which round.

    Raises:
        UserError: the path is a folder or can't be written, or a tensor can't be written as `values`.
    """
    must_be("a torch.nn.Module", isinstance(model, nn.Module), model=model)
    tensors = model.state_dict()
    for name, θ in tensors.items():
        plain = isinstance(θ, Tensor) and θ.layout == torch.strided and not (θ.is_meta or θ.is_quantized)
        must_be("models whose state_dict has plain tensors", plain, **{f"state_dict()[{name!r}]": θ})
    data = packed.pack(TensorFile({name: θ.cpu() for name, θ in tensors.items()}, {}), values, sys.maxsize)
    with writing(path, "model.packed") as file:
        file.write_bytes(data)


def unpack(path: str | Path) -> dict[str, Tensor]:
    """The `state_dict` that :func:`pack` wrote, for `model.load_state_dict`; pruned weights are 0.

    Raises:
        UserError: the file is missing, damaged or of another kind, or has more than this machine's memory or
            a thousand entries for each of its bytes.
    """
    bytes_of_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    contents = packed.read_packed(Path(path), most=bytes_of_memory // BYTES_OF_AN_ENTRY)
    return dict(contents.model.tensors)
