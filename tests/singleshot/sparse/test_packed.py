"""Packed files: the same model file back, and no damage unnoticed."""

import base64
import math

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from singleshot.errors import UserError
from singleshot.io.tensor_file import TensorFile, read_tensor_file
from singleshot.sparse import packed
from singleshot.sparse.packed import MAGIC, is_packed, pack, read_packed, unpack
from singleshot.sparse.values import LOSSLESS, VALUES

SPECIAL = np.array([0x00000000, 0x80000000, 0x7FC00001, 0xFF800000, 0x00000001, 0x3F800000], np.uint32)
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def models(draw):
    """Weights of any shape and bits, with masks that cover them, don't, or are missing, and others."""
    tensors = {}
    for i in range(draw(st.integers(0, 3))):
        shape = draw(shapes)
        bits = draw(
            arrays.arrays(np.uint32, shape, elements=st.sampled_from(SPECIAL) | st.integers(0, 2**32 - 1))
        )
        weight = torch.from_numpy(bits.view(np.float32))
        mask = torch.from_numpy(np.asarray(draw(arrays.arrays(bool, shape))))
        kind = draw(st.sampled_from(["alone", "masked", "masked elsewhere", "of another shape"]))
        if kind != "alone":
            tensors[f"n.{i}.mask"] = mask if kind != "of another shape" else mask[None]
        tensors[f"n.{i}.weight"] = weight.masked_fill(~mask, 0.0) if kind == "masked" else weight
        tensors[f"n.{i}.bias"] = torch.randn(draw(st.integers(0, 3)))
    if draw(st.booleans()):
        tensors["batches"] = torch.tensor(draw(st.integers(-9, 9)))
        tensors["half"] = torch.randn(draw(st.integers(0, 2)), 3).to(
            draw(st.sampled_from([torch.float16, torch.bfloat16]))
        )
    return TensorFile(tensors, draw(st.dictionaries(st.text(max_size=3), st.text(max_size=9), max_size=2)))


def bits_of(tensor):
    return (
        tensor.dtype,
        tuple(tensor.shape),
        tensor.flatten().tolist() and tensor.contiguous().view(-1).view(torch.uint8).tolist(),
    )


def assert_same(model, expected):
    assert model.metadata == expected.metadata
    assert list(model.tensors) == list(expected.tensors)
    assert [bits_of(t) for t in model.tensors.values()] == [bits_of(t) for t in expected.tensors.values()]


@pytest.mark.parametrize("values", LOSSLESS)
@given(model=models())
def test_lossless_files_hold_every_bit(values, model):
    contents = unpack(pack(model, values))
    assert contents.values == values
    assert_same(contents.model, model)


def small_agent(sparsity=0.9):
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for layer, (outputs, inputs) in {"pi.0": (40, 11), "pi.1": (30, 40), "pi.2": (3, 30)}.items():
        mask = torch.rand(outputs, inputs, generator=generator) > sparsity
        tensors[f"actor.{layer}.mask"] = mask
        tensors[f"actor.{layer}.weight"] = torch.randn(mask.shape, generator=generator).masked_fill(~mask, 0)
        tensors[f"actor.{layer}.bias"] = torch.randn(outputs, generator=generator)
    return TensorFile(tensors, {"agent": '{"spec": 1}'})


@pytest.mark.parametrize("values", LOSSLESS)
def test_the_model_file_itself_comes_back(values, tmp_path):
    model = small_agent()
    path = tmp_path / "agent.safetensors"
    safetensors.torch.save_file(dict(model.tensors), path, dict(model.metadata))
    again = unpack(pack(read_tensor_file(path), values)).model
    assert safetensors.torch.save(dict(again.tensors), dict(again.metadata)) == path.read_bytes()


def test_a_kept_weight_that_is_zero_stays_kept():
    """The mask says what is kept, not the numbers."""
    mask = torch.tensor([[True, True], [False, False]])
    weight = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    contents = unpack(pack(TensorFile({"a.mask": mask, "a.weight": weight}, {})))
    assert contents.model.tensors["a.mask"].tolist() == mask.tolist()
    (part,) = contents.parts
    assert (part.name, part.kept, part.value_bytes) == ("a.weight", 2, 8)
    assert part.mask_bytes > 0


def test_a_number_outside_of_its_mask_is_kept_too():
    weight = torch.tensor([[0.0, -0.0], [2.0, 0.0]])
    contents = unpack(pack(TensorFile({"a.mask": torch.eye(2, dtype=torch.bool), "a.weight": weight}, {})))
    assert bits_of(contents.model.tensors["a.weight"]) == bits_of(weight)
    assert {part.name: part.kept for part in contents.parts} == {"a.mask": 2, "a.weight": 2}


@pytest.mark.parametrize("values", ["fp16", "int8"])
def test_rounded_files_keep_masks_biases_to_11_bits_and_zeros(values):
    model = small_agent()
    tensors = unpack(pack(model, values)).model.tensors
    for name, tensor in model.tensors.items():
        if name.endswith("mask"):
            assert torch.equal(tensors[name], tensor)
            continue
        step = tensor.abs() / 1024
        if values == "int8" and tensor.ndim > 1:  # a step for each unit of the side that has fewer
            step = tensor.abs().amax(int(tensor.shape[0] <= tensor.shape[1]), keepdim=True) / 127
        assert ((tensors[name] - tensor).abs() <= 0.5001 * step).all()
        assert not tensors[name][tensor == 0].any()


def test_a_value_that_does_not_fit_is_refused_by_its_tensors_name():
    with pytest.raises(UserError, match=r"a\.weight: 1e\+09 is beyond float16"):
        pack(TensorFile({"a.weight": torch.tensor([[1e9]])}, {}), "fp16")


@pytest.mark.parametrize("values", VALUES)
def test_every_flipped_byte_is_found(values):
    data = pack(small_agent(), values)
    for i in range(len(data)):
        with pytest.raises(UserError, match=r"damaged|not a packed file"):
            unpack(data[:i] + bytes([data[i] ^ (1 << i % 8)]) + data[i + 1 :])


def test_every_truncation_and_extension_is_found():
    data = pack(TensorFile({"a.weight": torch.eye(3)}, {}))
    for length in range(len(data)):
        with pytest.raises(UserError, match=r"damaged|not a packed file"):
            unpack(data[:length])
    with pytest.raises(UserError, match="damaged"):
        unpack(data + b"\0")


def test_a_file_of_a_later_codec_says_so(monkeypatch):
    monkeypatch.setattr(packed, "VERSION", 2)
    data = pack(small_agent())
    monkeypatch.undo()
    with pytest.raises(UserError, match="codec version 2, not 1"):
        unpack(data)


def test_files_are_told_apart_and_errors_name_them(tmp_path):
    plain, short = tmp_path / "a.safetensors", tmp_path / "b.packed"
    safetensors.torch.save_file({"a": torch.zeros(2)}, plain)
    short.write_bytes(pack(small_agent())[:-1])
    assert (is_packed(plain), is_packed(short)) == (False, True)
    with pytest.raises(UserError, match=r"b\.packed: its checksum"):
        read_packed(short)
    with pytest.raises(UserError, match=r"a\.safetensors: not a packed file"):
        read_packed(plain)
    with pytest.raises(UserError, match=r"none\.packed: No such file"):
        read_packed(tmp_path / "none.packed")
    with pytest.raises(UserError, match=r"b\.packed: not a whole safetensors file"):
        read_tensor_file(short)


def test_the_parts_of_a_file_are_all_of_it():
    model = small_agent()
    data = pack(model)
    contents = unpack(data)
    in_parts = sum(part.mask_bytes + part.value_bytes for part in contents.parts)
    assert contents.header_bytes + contents.counts_bytes + in_parts == len(data)
    for part in contents.parts:
        mask = model.tensors.get(part.name.replace("weight", "mask"), torch.ones(part.shape))
        assert part.kept == mask.count_nonzero()
        assert part.value_bytes == 4 * part.kept
        bound = math.log2(math.comb(part.entries, part.kept)) / 8
        assert part.mask_bound_bytes == pytest.approx(bound if "weight" in part.name else 0, abs=1e-6)


GOLDEN = (
    "iVNTUEFDSwokdVtDAbMN3dubqLO1f+imgQAAAC8AAADgAKMAeQAAPYjO1doMIGiadGGBLkHB4iLi284c7ARHsPIIM50CxN6P"
    "FFwYMtfBhguwTmtvYyRCDKxrPM1xmqueC5uzO0J1p3ZuRKft4M99joEY3tax3OsGqAbMvy3yqYlIII+wcT4Sr0ML43FGY5Jm"
    "N3ZvxzIL/WXMLdXnx454gADgCDMAJwAAAWk4bp86IpeD5hEK8lXhkawv0nXxTH4/dl/nIqUjjH7dghfAYEYAAN3D6koIAAAA"
    "AAAAAABAAAAAAAAwAABwAAAAAAAoAAAw8+8DERsAAAAAAAAAAID8AAAB"
)
"""Of 4×6 weights, 1, 2, … under a mask of the diagonals, with exponents."""


def test_a_file_that_was_packed_on_another_day_opens():
    """Its bytes were made by models of the coder's: these are the same with every version and machine."""
    mask = torch.eye(4, 6, dtype=torch.bool) | torch.eye(4, 6, dtype=torch.bool).flip(1)
    weight = torch.arange(1.0, 25.0).view(4, 6).masked_fill(~mask, 0)
    model = TensorFile({"a.mask": mask, "a.weight": weight, "a.bias": torch.tensor([0.5, -1.0])}, {"k": "v"})
    assert_same(unpack(base64.b64decode(GOLDEN)).model, model)
    assert GOLDEN.startswith(base64.b64encode(MAGIC[:6]).decode())
