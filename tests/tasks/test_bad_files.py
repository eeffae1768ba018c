"""Damaged, cut and lying files: every reader of a user's file says in a line what is wrong.

Readers run in a process with bounded memory and time (`tests/support/reader_process.py`).
"""

import json
import pickle
import socket
import socketserver
import struct
import threading
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from reader_process import ReaderProcess
from sample_files import SAMPLES, write_samples
from small_graphs import write_bc

from singleshot.errors import UserError
from singleshot.io import download
from singleshot.sparse import packed

LARGE = 10**12


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    return write_samples(tmp_path_factory.mktemp("samples"))


@pytest.fixture(scope="module")
def process():
    reader = ReaderProcess()
    yield reader
    reader.close()


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


def check(process, reader, path):
    """That the file is read, or refused in a line that names it; the answer."""
    answer = process.read(reader, path)
    assert answer.outcome in {"read", "refused"}, answer
    if answer.outcome == "refused":
        assert "\n" not in answer.words
        assert answer.words.startswith(str(path))
    return answer


def try_damage(process, samples, name, file_number, damage):
    reader, path = samples[name]
    files = files_of(path)
    file = files[file_number % len(files)]
    good = file.read_bytes()
    file.write_bytes(damaged(good, damage))
    try:
        check(process, reader, path)
    finally:
        file.write_bytes(good)


# The process and the samples are as good after an example as before it.
shared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_good_file_is_read(process, samples, name):
    assert check(process, *samples[name]).outcome == "read"


@pytest.mark.parametrize("name", SAMPLES)
@settings(shared, max_examples=15, derandomize=True)
@given(st.integers(0, 9), damages())
def test_a_damaged_file_is_read_or_refused_in_a_line(process, samples, name, file_number, damage):
    try_damage(process, samples, name, file_number, damage)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
@settings(shared, max_examples=1000)
@given(st.integers(0, 9), damages())
def test_of_a_thousand_damaged_files_none_is_otherwise(process, samples, name, file_number, damage):
    try_damage(process, samples, name, file_number, damage)


CARDS = {
    "agent": "agent",
    "episode": "episode",
    "expert": "card",
    "style": "style_model",
}
"""By sample, the key of its metadata that holds a description as JSON."""
GRAPHS = ["graph", "policy's graph"]
"""Samples whose metadata hold a description's entries, each as JSON."""
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("name", CARDS)
@settings(shared, max_examples=15, derandomize=True)
@given(st.integers(0, 99), anything)
def test_a_model_whose_description_says_anything_is_refused_in_a_line(process, samples, name, number, value):
    """One entry of the description, at any depth, is something else."""
    reader, path = samples[name]
    file = path.with_name("forged")
    with safetensors.safe_open(path, "pt") as model:
        card = json.loads(model.metadata()[CARDS[name]])
        tensors = {key: model.get_tensor(key) for key in model.keys()}  # noqa: SIM118
    replace_entry(card, number, value)
    file.write_bytes(safetensors.torch.save(tensors, {CARDS[name]: json.dumps(card)}))
    check(process, reader, file)


@pytest.mark.parametrize("name", GRAPHS)
@settings(shared, max_examples=25, derandomize=True)
@given(st.integers(0, 99), anything)
def test_a_graph_whose_description_says_anything_is_refused_in_a_line(process, samples, name, number, value):
    reader, path = samples[name]
    file = path.with_name("forged")
    graph = onnx.load(path)
    card = {entry.key: json.loads(entry.value) for entry in graph.metadata_props}
    replace_entry(card, number, value)
    helper.set_model_props(graph, {key: json.dumps(each) for key, each in card.items()})
    onnx.save(graph, file)
    check(process, reader, file)


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
@settings(shared, max_examples=25, derandomize=True)
@given(damages())
def test_a_packed_file_that_is_forged_under_a_right_checksum_is_refused_in_a_line(
    process, samples, name, damage
):
    reader, path = samples[name]
    start = len(packed.MAGIC) + 16
    file = path.with_name("forged")
    file.write_bytes(signed(damaged(path.read_bytes()[start:], damage)))
    check(process, reader, file)


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


def large_bmp(path):
    header = struct.pack("<IiiHHIIiiII", 40, 40_000, 25_000, 1, 24, 0, 0, 0, 0, 0, 0)
    path.write_bytes(b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + header)


def long_d4rl(path):
    with h5py.File(path, "w") as file:
        for name, width in {"observations": (11,), "actions": (3,), "rewards": (), "terminals": ()}.items():
            file.create_dataset(name, (LARGE, *width), "f4", chunks=(1000, *width))


def d4rl_elsewhere(path):
    other = path.with_name("other.hdf5")
    with h5py.File(other, "w") as file:
        file["rewards"] = np.zeros(5, np.float32)
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"] = np.zeros((5, 11), np.float32), np.zeros((5, 3), np.float32)
        file["terminals"] = np.zeros(5, bool)
        file["rewards"] = h5py.ExternalLink(str(other), "rewards")


def d4rl_of_text(path):
    with h5py.File(path, "w") as file:
        for name in ("observations", "actions", "rewards", "terminals"):
            file[name] = [f"{name}"] * 3


def long_minari(path):
    (path / "hopper-tiny-v0/data").mkdir(parents=True)
    with h5py.File(path / "hopper-tiny-v0/data/main_data.hdf5", "w") as file:
        file.create_dataset("episode_0/rewards", (LARGE,), "f8", chunks=(1000,))


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


def deep_style(path):
    path.write_bytes(safetensors.torch.save({"x": torch.zeros(1)}, {"style_model": "[" * 10**6}))


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


class Malicious:
    def __reduce__(self):
        return (Path.touch, (Path("touched"),))


def malicious_pickle(path):
    path.write_bytes(pickle.dumps(Malicious()))


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


LIES = [
    ("picture", large_png),
    ("picture to stylise", large_png),
    ("picture's size", large_png),
    ("picture", large_bmp),
    ("D4RL file", long_d4rl),
    ("D4RL file", d4rl_elsewhere),
    ("D4RL file", d4rl_of_text),
    ("Minari data set", long_minari),
    ("member of a wheel", bomb),
    ("graph", graph_with_data_elsewhere),
    ("policy's graph", policy_of_a_petabyte),
    ("policy's graph", policy_with_sparse_weights_of_a_petabyte),
    ("style", wide_style),
    ("style", deep_style),
    ("agent", deep_agent),
    ("classifier", deep_agent),
    ("expert", deep_agent),
    ("safetensors file", long_safetensors),
    ("transitions", long_safetensors),
    ("backbone", long_safetensors),
    ("packed file", packed_of_a_petabyte),
    ("packed file", packed_with_a_long_header),
    ("packed file", packed_of_functions),
    ("pickled arrays", malicious_pickle),
    ("pickled arrays", long_pickle),
    ("video", endless_video),
    ("video's frames", endless_video),
]
REASONS = {
    graph_with_data_elsewhere: "escapes model directory",
    policy_of_a_petabyte: f"buffer of size {1 << 50}",
    policy_with_sparse_weights_of_a_petabyte: f"dense data size of {1 << 50}",
}
"""Words of the reason, where a file might be refused for another one."""


@pytest.mark.parametrize(
    ("reader", "write"), LIES, ids=[f"{write.__name__}-{reader}" for reader, write in LIES]
)
def test_a_file_that_claims_what_is_not_in_it_is_refused_in_a_line(process, tmp_path, reader, write):
    path = tmp_path / "graphs" / "file" if reader == "graph" else tmp_path / "file"
    path.parent.mkdir(exist_ok=True)
    write(path)
    answer = check(process, reader, path)
    assert answer.outcome == "refused"
    assert REASONS.get(write, "") in answer.words
    assert not Path("touched").exists()


@settings(shared, max_examples=60, derandomize=True)
@given(
    st.sampled_from(
        ["", "file://", "http://", "http://127.0.0.1:1/", "http://[", "ftp://", "http://127.0.0.1:"]
    ),
    st.text(max_size=30) | st.sampled_from(["\0", "\udc80", "x" * 5000, "%zz", "99999/x", "a b/"]),
)
def test_an_address_of_any_text_is_refused_in_a_line(tmp_path_factory, scheme, text):
    url = scheme + text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "RETRIES", 0)
        patch.setattr(socket, "getaddrinfo", no_such_host)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with pytest.raises(UserError) as refused:
            download.download_cached(url + "/no/such/file")
    assert len(str(refused.value).splitlines()) <= 1 + len(url.splitlines())


def no_such_host(*_: object) -> None:
    raise socket.gaierror("no such host")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff\xfe\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nabc",
        b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc",
        b"HTTP/1.1 416 Range\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_a_server_that_answers_anything_costs_no_good_file(tmp_path, monkeypatch, answer):
    monkeypatch.setattr(download, "RETRIES", 0)
    good = tmp_path / "file"
    good.write_bytes(b"good")
    with answering(answer) as url, pytest.raises(UserError) as refused:
        download.download(url, good, "0" * 64)
    assert "\n" not in str(refused.value)
    assert good.read_bytes() == b"good"


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
