"""Damaged, cut and lying files: every reader of a user's file says in a line what is wrong.

Readers run in a process with bounded memory and time (`tests/support/sample_files.py`).
"""

import json
import socketserver
import struct
import threading
import zipfile
import zlib
from contextlib import contextmanager

import h5py
import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
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
    """Readers and files, by the files' names."""
    made = {}
    for number, (name, (reader, write)) in enumerate(SAMPLES.items()):
        path = tmp_path_factory.mktemp("samples") / str(number)
        write(path)
        made[name] = reader, path
    return made


@pytest.fixture(scope="module")
def process():
    with OwnProcess() as reader:
        yield reader


def refusal(process, reader, path):
    """The line in which a file is refused; "" if it is read. Any other end of the reader fails the test."""
    refused = ""
    try:
        process.call(SECONDS, read, reader, path)
    except UserError as error:
        refused = str(error)
    assert not refused or refused.startswith(str(path))
    assert "\n" not in refused
    return refused


@st.composite
def damages(draw):
    """What is done to a file's bytes: up to four of these, most of them near its beginning."""
    where = st.one_of(st.integers(0, 63), st.integers(0, 1023), st.integers(0, 1 << 30))
    width = st.sampled_from([1, 2, 4, 8])
    claims = st.tuples(
        st.just("claim"), where, width, st.integers(0, 2**64 - 1), st.sampled_from(["big", "little"])
    )
    extremes = st.sampled_from([0, 1, 2**15 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, LARGE])
    large = st.tuples(st.just("claim"), where, width, extremes, st.sampled_from(["big", "little"]))
    doubled = st.tuples(st.just("double"), where, st.integers(1, 64))
    cut = st.tuples(st.just("cut"), where)
    return draw(st.lists(st.one_of(claims, large, doubled, cut), min_size=1, max_size=4))


def damaged(content, damage):
    content = bytearray(content)
    for kind, at, *how in damage:
        at %= max(len(content), 1)
        match kind, *how:
            case "cut":
                del content[at:]
            case "double", size:
                content[at:at] = content[at : at + size]
            case "claim", width, value, order:
                content[at : at + width] = (value % 256**width).to_bytes(width, order)
    return bytes(content)


def files_of(path):
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


# The process and the samples are as good after an example as before it.
shared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    max_examples=100,
)


@pytest.mark.parametrize("name", SAMPLES)
@shared
@given(st.integers(0, 9), st.just([]) | damages())
def test_a_damaged_file_is_read_or_refused_in_a_line(process, samples, name, file_number, damage):
    reader, path = samples[name]
    files = files_of(path)
    file = files[file_number % len(files)]
    good = file.read_bytes()
    file.write_bytes(damaged(good, damage))
    try:
        refused = refusal(process, reader, path)
    finally:
        file.write_bytes(good)
    assert damage or not refused


def forge_metadata(path, file, change):
    """Write a safetensors file whose description, its single entry of metadata, is changed."""
    with safetensors.safe_open(path, "pt") as model:
        ((key, text),) = model.metadata().items()
        tensors = {name: model.get_tensor(name) for name in model.keys()}  # noqa: SIM118
    description = json.loads(text)
    change(description)
    file.write_bytes(safetensors.torch.save(tensors, {key: json.dumps(description)}))


def forge_card(path, file, change):
    graph = onnx.load(path)
    card = {entry.key: json.loads(entry.value) for entry in graph.metadata_props}
    change(card)
    helper.set_model_props(graph, {key: json.dumps(each) for key, each in card.items()})
    onnx.save(graph, file)


FORGERIES = {
    **dict.fromkeys(("agent", "episode", "expert", "style"), forge_metadata),
    **dict.fromkeys(("graph", "policy's graph"), forge_card),
}
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("name", FORGERIES)
@shared
@given(st.integers(0, 99), anything)
def test_a_model_whose_description_says_anything_is_refused_in_a_line(process, samples, name, number, value):
    """One entry of the description, at any depth, is something else."""
    reader, path = samples[name]
    file = path.with_name("forged")
    FORGERIES[name](path, file, lambda card: replace_entry(card, number, value))
    refusal(process, reader, file)


def replace_entry(card, number, value):
    places = []

    def walk(inside):
        for key, child in inside.items():
            places.append((inside, key))
            if isinstance(child, dict):
                walk(child)
            elif key == "inputs":  # of a graph
                walk(child[0])

    walk(card)
    inside, key = places[number % len(places)]
    inside[key] = value


@pytest.mark.parametrize("name", ["packed", "packed int8"])
@shared
@given(damages())
def test_a_packed_file_that_is_forged_under_a_right_checksum_is_refused_in_a_line(
    process, samples, name, damage
):
    reader, path = samples[name]
    start = len(packed.MAGIC) + 16
    file = path.with_name("forged")
    file.write_bytes(signed(damaged(path.read_bytes()[start:], damage)))
    refusal(process, reader, file)


def signed(rest):
    return packed.MAGIC + packed._digest(rest) + rest


def png(width, height):
    def chunk(kind, content):
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(9999)))
        + chunk(b"IEND", b"")
    )


def large_png(path):
    path.write_bytes(png(40_000, 25_000))


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
    write_bc(path)
    add_a_petabyte(path)


def add_a_petabyte(path):
    """Have the graph add up 2⁴⁸ zeros before its last output."""
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


def long_safetensors(path):
    header = json.dumps({"x": {"dtype": "F32", "shape": [LARGE], "data_offsets": [0, 4 * LARGE]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))


def forged_packed(parts=(), metadata=(), padding=""):
    header = {"values": "raw", "metadata": metadata, "parts": parts, "padding": padding}
    text = zlib.compress(json.dumps(header).encode())
    return signed(struct.pack("<I", len(text)) + text)


def packed_of_a_petabyte(path):
    path.write_bytes(forged_packed([["w", "float32", [1 << 24, 1 << 24], 0, None, 0, 0]]))


def packed_with_a_long_header(path):
    path.write_bytes(forged_packed(padding="a" * (130 << 20)))


def packed_of_functions(path):
    path.write_bytes(forged_packed([["w", "load", [4], 4, None, 0, 4]]))


def long_pickle(path):
    path.write_bytes(b"\x80\x04\x8e" + struct.pack("<Q", LARGE) + b"abc.")


def endless_video(path):
    """An MP4 whose sample table claims 2³² - 1 frames."""
    good = path.with_name("good.mp4")
    SAMPLES["MP4"][1](good)
    content = good.read_bytes()
    for box in (b"stsz", b"stts", b"stsc"):
        at = content.index(box) + (12 if box == b"stsz" else 8)
        content = content[:at] + b"\xff\xff\xff\xff" + content[at + 4 :]
    path.write_bytes(content)


LIES = {
    large_png: "picture to stylise",
    long_d4rl: "D4RL file",
    bomb: "member of a wheel",
    graph_with_data_elsewhere: "graph",
    policy_of_a_petabyte: "policy's graph",
    policy_with_sparse_weights_of_a_petabyte: "policy's graph",
    wide_style: "style",
    deep_agent: "agent",
    long_safetensors: "safetensors file",
    packed_of_a_petabyte: "packed file",
    packed_with_a_long_header: "packed file",
    packed_of_functions: "packed file",
    long_pickle: "pickled arrays",
    endless_video: "video's frames",
}
REASONS = {
    graph_with_data_elsewhere: "escapes model directory",
    policy_of_a_petabyte: f"buffer of size {1 << 50}",
    policy_with_sparse_weights_of_a_petabyte: f"dense data size of {1 << 50}",
}
"""Words of the reason, where a file might be refused for another one."""


@pytest.mark.parametrize("write", LIES)
def test_a_file_that_claims_what_is_not_in_it_is_refused_in_a_line(process, tmp_path, write):
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    write(path)
    refused = refusal(process, LIES[write], path)
    assert refused
    assert REASONS.get(write, "") in refused


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\nabc",
        b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc",
    ],
)
def test_a_server_that_answers_anything_is_told_in_a_line(tmp_path, monkeypatch, answer):
    monkeypatch.setattr(download, "RETRIES", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with answering(answer) as url, pytest.raises(UserError) as refused:
        download.download_cached(url, "0" * 64)
    assert "\n" not in str(refused.value)
    assert [path.suffix for path in (tmp_path / "singleshot/downloads").iterdir()] == [".lock"]


@contextmanager
def answering(content):
    """A server that says the same to everybody, and closes the connection."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(65536)
            self.request.sendall(content)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/file"
        server.shutdown()
        thread.join()
