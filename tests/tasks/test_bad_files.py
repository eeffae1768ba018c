"""Damaged, cut and lying files: every reader of a user's file says in a line what is wrong.

Readers run in a process with bounded memory and time (`tests/support/sample_files.py`).
"""

import json
import socketserver
import struct
import threading
import zipfile
import zlib

import h5py
import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sample_files import SAMPLES, read
from small_graphs import write_bc

from singleshot.errors import UserError
from singleshot.io import download
from singleshot.io.own_process import OwnProcess
from singleshot.sparse import packed

pytestmark = pytest.mark.slow
LARGE = 10**12
SECONDS = 60
"""For a file, the start of the process included."""


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """Files by the names of their samples."""
    made = {}
    for number, (name, (_, write)) in enumerate(SAMPLES.items()):
        made[name] = tmp_path_factory.mktemp("samples") / str(number)
        write(made[name])
    return made


@pytest.fixture(scope="module")
def process():
    with OwnProcess() as reader:
        yield reader


def refusal(process, sample, path):
    """The line in which a file is refused; "" if it is read. Any other end of the reader fails the test."""
    refused = ""
    try:
        process.call(SECONDS, read, sample, path)
    except UserError as error:
        refused = str(error)
    assert not refused or refused.startswith(str(path))
    assert "\n" not in refused
    return refused


where = st.one_of(st.integers(0, 63), st.integers(0, 1023), st.integers(0, 1 << 30))
large = st.sampled_from([0, 1, 2**15 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, LARGE])
claims = st.tuples(
    where,
    st.sampled_from([1, 2, 4, 8]),
    large | st.integers(0, 2**64 - 1),
    st.sampled_from(["big", "little"]),
)
damages = st.lists(claims | st.tuples(where), max_size=4)
"""What is done to a file's bytes: other numbers somewhere, or its end is cut off."""


def damaged(content, damage):
    content = bytearray(content)
    for at, *claim in damage:
        at %= max(len(content), 1)
        if claim:
            width, value, order = claim
            content[at : at + width] = (value % 256**width).to_bytes(width, order)
        else:
            del content[at:]
    return bytes(content)


# The process and the samples are as good after an example as before it.
shared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    max_examples=100,
)


@pytest.mark.parametrize("name", SAMPLES)
@shared
@given(st.integers(0, 9), damages)
def test_a_damaged_file_is_read_or_refused_in_a_line(process, samples, name, file_number, damage):
    """A packed file has a right checksum."""
    path = samples[name]
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    file = files[file_number % len(files)]
    good = file.read_bytes()
    file.write_bytes(signed(damaged(good[24:], damage)) if name == "packed" else damaged(good, damage))
    try:
        refused = refusal(process, name, path)
    finally:
        file.write_bytes(good)
    assert damage or not refused


def signed(rest):
    return packed.MAGIC + packed._digest(rest) + rest


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("name", ["agent", "episode", "expert", "style", "packed", "policy's graph"])
@shared
@given(st.integers(0, 99), anything)
def test_a_model_whose_description_says_anything_is_refused_in_a_line(process, samples, name, number, value):
    """One entry of the description, at any depth, is something else."""
    path = samples[name]
    file = path.with_name("forged")
    if name == "policy's graph":
        graph = onnx.load(path)
        card = {entry.key: json.loads(entry.value) for entry in graph.metadata_props}
        replace_entry(card, number, value)
        helper.set_model_props(graph, {key: json.dumps(each) for key, each in card.items()})
        onnx.save(graph, file)
    elif name == "packed":
        (length,) = struct.unpack("<I", (rest := path.read_bytes()[24:])[:4])
        header = json.loads(zlib.decompress(rest[4 : 4 + length]))
        replace_entry(header, number, value)
        text = zlib.compress(json.dumps(header).encode())
        file.write_bytes(signed(struct.pack("<I", len(text)) + text + rest[4 + length :]))
    else:
        with safetensors.safe_open(path, "pt") as model:
            ((key, text),) = model.metadata().items()
            tensors = {name: model.get_tensor(name) for name in model.keys()}  # noqa: SIM118
        description = json.loads(text)
        replace_entry(description, number, value)
        file.write_bytes(safetensors.torch.save(tensors, {key: json.dumps(description)}))
    refusal(process, name, file)


def replace_entry(card, number, value):
    places = []

    def walk(inside):
        for key, child in inside.items() if isinstance(inside, dict) else enumerate(inside):
            places.append((inside, key))
            if isinstance(child, dict | list):
                walk(child)

    walk(card)
    inside, key = places[number % len(places)]
    inside[key] = value


def large_png(path):
    Image.new("1", (40_000, 25_000)).save(path, "PNG")


def long_d4rl(path):
    with h5py.File(path, "w") as file:
        for name, width in {"observations": (11,), "actions": (3,), "rewards": (), "terminals": ()}.items():
            file.create_dataset(name, (LARGE, *width), "f4", chunks=(1000, *width))


def bomb(path):
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("weights.bin", "w") as member,
    ):
        for _ in range(300):
            member.write(bytes(1 << 20))


def graph_with_data_elsewhere(path):
    write_bc(path)
    graph = onnx.load(path)
    (weights,) = graph.graph.initializer
    (path.parent.parent / "secret.bin").write_bytes(weights.raw_data)
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="../secret.bin")
    onnx.save(graph, path)


def policy_of_a_petabyte(path):
    """It adds up 2⁴⁸ zeros before its last output."""
    write_bc(path)
    model = onnx.load(path)
    *_, last = model.graph.node
    (output,), last.output[:] = last.output[:], ["before"]
    model.graph.initializer.append(helper.make_tensor("shape", TensorProto.INT64, [2], [1 << 24, 1 << 24]))
    model.graph.node.extend(
        [
            helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
            helper.make_node("ReduceSum", ["zeros"], ["sum of zeros"], keepdims=0),
            helper.make_node("Add", ["before", "sum of zeros"], [output]),
        ]
    )
    onnx.save(model, path)


def policy_with_sparse_weights_of_a_petabyte(path):
    """Under a name that the graph's nodes don't know."""
    SAMPLES["policy's graph"][1](path)
    model = onnx.load(path)
    values = numpy_helper.from_array(np.ones(1, np.float32), "decoder.9.weight")
    indices = numpy_helper.from_array(np.zeros(1, np.int64))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [1 << 24, 1 << 24]))
    onnx.save(model, path)


def wide_style(path):
    card = {"width": 10**6, "style": "s", "style_sha256": "", "photos": "", "steps": 1, "settings": {}}
    card |= {"scores": {}, "commit": ""}
    path.write_bytes(safetensors.torch.save({"x": torch.zeros(1)}, {"style_model": json.dumps(card)}))


def deep_agent(path):
    path.write_bytes(safetensors.torch.save({"x": torch.zeros(1)}, {"agent": "[" * 10**6}))


def forged_packed(path, parts=(), padding=""):
    header = {"values": "raw", "metadata": (), "parts": parts, "padding": padding}
    text = zlib.compress(json.dumps(header).encode())
    path.write_bytes(signed(struct.pack("<I", len(text)) + text))


def packed_of_a_petabyte(path):
    forged_packed(path, [["w", "float32", [1 << 24, 1 << 24], 0, None, 0, 0]])


def packed_with_a_long_header(path):
    forged_packed(path, padding="a" * (130 << 20))


def packed_of_functions(path):
    forged_packed(path, [["w", "load", [4], 4, None, 0, 4]])


def long_pickle(path):
    path.write_bytes(b"\x80\x04\x8e" + struct.pack("<Q", LARGE) + b"abc.")


LIES = {
    large_png: ("PNG", ""),
    long_d4rl: ("D4RL", ""),
    bomb: ("wheel", ""),
    graph_with_data_elsewhere: ("graph", "weights in another file"),
    policy_of_a_petabyte: ("policy's graph", f"buffer of size {1 << 50}"),
    policy_with_sparse_weights_of_a_petabyte: ("policy's graph", f"dense data size of {1 << 50}"),
    wide_style: ("style", ""),
    deep_agent: ("agent", ""),
    packed_of_a_petabyte: ("packed", ""),
    packed_with_a_long_header: ("packed", ""),
    packed_of_functions: ("packed", ""),
    long_pickle: ("pickle", ""),
}
"""Whose reader reads it, and words of the reason, where a file might be refused for another one."""


@pytest.mark.parametrize("write", LIES)
def test_a_file_that_claims_what_is_not_in_it_is_refused_in_a_line(process, tmp_path, write):
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    write(path)
    sample, reason = LIES[write]
    refused = refusal(process, sample, path)
    assert refused
    assert reason in refused


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\nabc",
        b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_a_server_that_answers_anything_is_told_in_a_line(tmp_path, monkeypatch, answer):
    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(65536)
            self.request.sendall(answer)

    monkeypatch.setattr(download, "RETRIES", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        with pytest.raises(UserError) as refused:
            download.download_cached(f"http://127.0.0.1:{server.server_address[1]}/file", "0" * 64)
        server.shutdown()
    assert "\n" not in str(refused.value)
    assert [path.suffix for path in (tmp_path / "singleshot/downloads").iterdir()] == [".lock"]
