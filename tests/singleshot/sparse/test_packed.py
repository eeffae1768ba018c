"""Packed files: the same model file back, and no damage unnoticed."""

import hashlib
import json
import math
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import singleshot
from singleshot.errors import UserError
from singleshot.io.tensor_file import TensorFile, read_tensor_file
from singleshot.sparse.formats import log2_binomial
from singleshot.sparse.packed import LOSSLESS, MAGIC, is_packed, pack, read_packed, unpack

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


def test_a_kept_weight_that_is_zero_and_a_number_outside_of_its_mask_stay():
    """The mask says what is kept, not the numbers."""
    mask = torch.tensor([[True, True], [False, False]])
    for weight, kept in (
        ([[0.0, 1.0], [0.0, 0.0]], {"a.weight": 2}),
        ([[0.0, -0.0], [2.0, 0.0]], {"a.mask": 2, "a.weight": 2}),
    ):
        model = TensorFile({"a.mask": mask, "a.weight": torch.tensor(weight)}, {})
        contents = unpack(pack(model))
        assert_same(contents.model, model)
        assert {part.name: part.kept for part in contents.parts} == kept


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


def test_rounding_of_known_values():
    """The largest of a row is 127 steps, here of 0.01 and of 10; the largest float is not infinity."""

    def alone(values, kind):
        return unpack(pack(TensorFile({"w": torch.tensor(values)}, {}), kind)).model.tensors["w"]

    rows = [[1.27, -1.27, 0.5, 0.004, 0.006, 0.0], [1270.0, 0.0, 14.0, 16.0, -6.0, 1e-3]]
    expected = torch.tensor([[1.27, -1.27, 0.5, 0.0, 0.01, 0.0], [1270, 0, 10, 20, -10, 0]])
    torch.testing.assert_close(alone(rows, "int8"), expected)
    assert alone([[torch.finfo(torch.float32).max]], "int8").isfinite().all()
    assert alone([[math.inf, -math.inf]], "fp16").tolist() == [[math.inf, -math.inf]]
    for value, kind in ((7e4, "fp16"), (math.nan, "int8"), (math.inf, "int8")):
        with pytest.raises(UserError, match=r"^w: "):
            alone([[1.0, value]], kind)


@pytest.mark.parametrize("density", [0.02, 0.05, 0.2, 0.5, 0.8, 0.98])
def test_a_random_mask_takes_hardly_more_than_all_masks_of_its_count_do(density):
    """log2 C(N, k): every format has to spend as much on average, where no mask is likelier than another."""
    mask = torch.from_numpy(np.random.default_rng(1).random((400, 500)) < density)
    (part,) = unpack(pack(TensorFile({"m": mask}, {}))).parts
    bound = log2_binomial(part.entries, part.kept) / 8
    assert part.mask_bytes < 1.08 * bound + 900  # of which each row and column has a byte


def test_units_of_unlike_density_save_bits():
    """Rows that keep 1 % and 20 %: the mean of both entropies, not the entropy of the mean."""
    densities = np.repeat([0.01, 0.2], 200)[:, None]
    mask = np.random.default_rng(2).random((400, 600)) < densities
    (part,) = unpack(pack(TensorFile({"m": torch.from_numpy(mask)}, {}))).parts
    entropy = sum(log2_binomial(half.size, int(half.sum())) for half in (mask[:200], mask[200:])) / 8
    assert entropy < part.mask_bytes < log2_binomial(part.entries, part.kept) / 8


def test_exponents_of_a_trained_layers_kind_take_27_bits():
    values = np.random.default_rng(0).normal(0, 0.05, (100, 100)).astype(np.float32)
    (part,) = unpack(pack(TensorFile({"w": torch.from_numpy(values)}, {}), "exponents")).parts
    _, counts = np.unique(np.frexp(values)[1], return_counts=True)
    entropy = -(counts / counts.sum() * np.log2(counts / counts.sum())).sum()
    assert 8 * part.value_bytes / values.size == pytest.approx(24 + entropy, rel=0.01)


@given(n=st.integers(0, 2000), data=st.data())
def test_log2_binomial_is_that_of_the_integer(n, data):
    k = data.draw(st.integers(0, n))
    assert log2_binomial(n, k) == pytest.approx(math.log2(math.comb(n, k)), abs=1e-6)


def test_every_flipped_byte_truncation_and_extension_is_found():
    data = pack(small_agent(), "exponents")
    damaged = [data[:i] + bytes([data[i] ^ (1 << i % 8)]) + data[i + 1 :] for i in range(len(data))]
    for each in (*damaged, *(data[:i] for i in range(len(data))), data + b"\0"):
        with pytest.raises(UserError, match=r"damaged|not a packed file"):
            unpack(each)


def packed(parts: list, body: bytes, values: str = "raw") -> bytes:
    """A file with such a header, whatever it says."""
    header = zlib.compress(json.dumps({"values": values, "metadata": {}, "parts": parts}).encode())
    rest = struct.pack("<I", len(header)) + header + body
    return MAGIC + hashlib.blake2b(rest, digest_size=16).digest() + rest


@pytest.mark.parametrize(
    ("parts", "lie"),
    [
        ([["w", "float32", [10**4000] * 30, 0, None, 0, 0]], "entries"),
        ([["w", "float32", [2**63, 0], 0, None, 0, 0]], "entries"),
        ([["w", "float32", [1] * 64, 1, None, 0, 4]], "64 axes"),
        ([["w", "float32", [2], 2.0, None, 0, 8]], "a number"),
        ([["w", "float32", [2], 2, None, 0, 8], ["v", "float32", [2], 2, None, -8, 8]], "a number"),
        ([["w", "_dynamo", [2], 2, None, 0, 8]], "KeyError: '_dynamo'"),
        ([["__metadata__", "float32", [2], 2, None, 0, 8]], "metadata"),
        ([["w", "float32", [2], 3, None, 0, 12]], "more than there is"),
        ([["w", "float32", [2], 2, "w", 0, 8]], "a mask"),
        ([["w", "float32", [2], 2, "m", 0, 8]], "a mask"),
        ([["w", "float32", [2], 2, "m", 0, 8], ["m", "bool", [1], 1, None, 0, 0]], "a mask"),
        ([["w", "float32", [2], 2, "m", 0, 8], ["m", "float32", [2], 2, None, 0, 0]], "a mask"),
    ],
)
def test_a_header_that_lies_is_refused(parts, lie):
    with pytest.raises(UserError, match=lie):
        unpack(packed(parts, bytes(max(0, sum(part[5] + part[6] for part in parts)))))


def test_a_few_bytes_do_not_claim_the_memory(tmp_path):
    path = tmp_path / "claims.packed"
    path.write_bytes(packed([["w", "float32", [2**31], 0, None, 0, 0]], b""))
    with pytest.raises(UserError, match=r"claims\.packed: its tensors have more than 67,108,864 entries"):
        singleshot.unpack(path)


def test_a_mask_is_found_by_its_name_alone():
    """A tensor without a name is no mask of all that have none."""
    tensors = {"a.weight": torch.arange(1.0, 5).view(2, 2), "": torch.tensor([True, False])}
    again = unpack(pack(TensorFile(tensors, {}))).model.tensors
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize(("kept", "values_are"), [(5, "raw"), (4096, "exponents"), (4096, "int8")])
def test_what_unpacks_to_more_than_the_header_needs_is_left_packed(kept, values_are):
    """A part of 64 x 64 whose positions, or values, are 64 MB of zeros in 300 kB."""
    coder = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    bomb = coder.compress(bytes(2**26)) + coder.flush()
    ahead = {"raw": b"", "exponents": bytes(3 * kept), "int8": bytes(4 * 64)}[values_are]
    in_mask = len(bomb) if kept == 5 else 0
    parts = [["w", "float32", [64, 64], kept, None, in_mask, len(ahead) + len(bomb) - in_mask]]
    data = packed(parts, ahead + bomb, values_are)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="compressed part"):
            unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


def test_files_are_told_apart_and_errors_name_them(tmp_path):
    plain, short = tmp_path / "a.safetensors", tmp_path / "b.packed"
    safetensors.torch.save_file({"a": torch.zeros(2)}, plain)
    short.write_bytes(pack(small_agent())[:-1])
    assert (is_packed(plain), is_packed(short)) == (False, True)
    for path in (short, plain, tmp_path / "none.packed"):
        with pytest.raises(UserError, match=f"^{path}: "):
            read_packed(path)


def test_the_parts_of_a_file_are_all_of_it():
    model = small_agent()
    data = pack(model)
    contents = unpack(data)
    in_parts = sum(part.mask_bytes + part.value_bytes for part in contents.parts)
    assert contents.header_bytes + in_parts == len(data)
    for part in contents.parts:
        mask = model.tensors.get(part.name.replace("weight", "mask"), torch.ones(part.shape))
        assert part.kept == mask.count_nonzero()
        assert part.value_bytes == 4 * part.kept
