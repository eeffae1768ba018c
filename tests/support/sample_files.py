"""A small good file for the readers of users' files, to damage; and the readers, in bounded memory."""

import logging
import pickle
import resource
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import torch
from odd_videos import make_video
from PIL import Image
from small_graphs import write_bc
from small_networks import save_agent, save_style

from pipelines.config.params import load_config
from singleshot.export.model_files import open_network
from singleshot.export.rollout import load_policy
from singleshot.io.images import read_picture
from singleshot.io.onnx_model import load_onnx
from singleshot.io.packages import read_member
from singleshot.io.tensor_file import read_tensor_file
from singleshot.io.to_onnx import card_of, to_onnx, with_sparse_initializers
from singleshot.rl.agents import load_agent
from singleshot.rl.data.d4rl import read_d4rl
from singleshot.rl.data.minari import read_minari, write_minari
from singleshot.rl.data.transitions import Episode, Transitions
from singleshot.rl.environments import LOCOMOTION
from singleshot.rl.evaluation.episode import PlayedEpisode, load_episode
from singleshot.rl.experts.policy import load_expert
from singleshot.sparse.packed import pack, read_packed
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.datasets.weights import load_arrays
from singleshot.style.model_file import load_model
from singleshot.style.video.reader import read_frames

HOPPER, STATE, ACTION = LOCOMOTION["Hopper"], 11, 3
MEMORY_BYTES = 1 << 29
"""That reading a small file may take besides what the readers' libraries do."""


def read(sample: str, path: Path) -> None:
    """Read a file by the reader of one of :data:`SAMPLES`, in bounded memory, in a process of its own."""
    logging.disable()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    taken = int(status.partition("VmData:")[2].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (taken + MEMORY_BYTES, resource.RLIM_INFINITY))
    SAMPLES[sample][0](path)


def _read_photos(directory: Path) -> None:
    photos = PhotoSet.open(directory)
    for name in photos.names:
        photos.read(name)


def _act(path: Path) -> None:
    policy = load_policy(path)
    policy.act({}, torch.zeros(1, 1, policy.state_size), torch.zeros(1, 1, *policy.noise_shape))


def _picture(file_format: str, mode: str = "RGB", **options: Any) -> Callable[[Path], None]:
    noise = np.random.default_rng(0).integers(0, 256, (40, 48, 4), np.uint8)
    return lambda path: Image.fromarray(noise, "RGBA").convert(mode).save(path, file_format, **options)


def _d4rl(path: Path) -> None:
    rows = 40
    with h5py.File(path, "w") as file:
        for name, values in {
            "observations": np.random.default_rng(0).standard_normal((rows, STATE), np.float32),
            "actions": np.zeros((rows, ACTION), np.float32),
            "rewards": np.ones(rows, np.float32),
            "terminals": np.arange(rows) % 10 == 9,
        }.items():
            file.create_dataset(name, data=values, compression="gzip")


def _minari(path: Path) -> None:
    episode = Episode(np.zeros((6, STATE)), np.zeros((5, ACTION), np.float32), np.ones(5), terminated=True)
    write_minari([episode] * 3, path, "hopper-tiny-v0", HOPPER, "none")


def _transitions(path: Path) -> None:
    states, n = np.zeros((9, STATE)), np.zeros(9)
    Transitions.cast(states, np.zeros((9, ACTION)), n, states, n).save(path)


def _packed(path: Path) -> None:
    save_style(path)
    path.write_bytes(pack(read_tensor_file(path), "int8"))


def _pruned_policy(path: Path) -> None:
    source = save_agent(path.with_suffix(".safetensors"), "bcq", 0.95)
    network = open_network(source, "masked")
    graph = to_onnx(network, card_of(network, "Hopper/bcq/random-0.95/seed-0", "0" * 40, source), opset=20)
    onnx.save(with_sparse_initializers(graph), path)


def _photos(path: Path) -> None:
    path.mkdir()
    _picture("JPEG")(path / "a.jpg")
    with zipfile.ZipFile(path / "photos.zip", "w") as archive:
        archive.write(path / "a.jpg", "a.jpg")
    (path / "a.jpg").unlink()


def _wheel(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("weights.bin", b"0123456789" * 400)


def _pickle(path: Path) -> None:
    content = pickle.dumps({"layer": {"kernel": np.arange(6.0).reshape(2, 3)}}, protocol=3)
    path.write_bytes(content.replace(b"numpy._core", b"numpy.core"))  # as older versions call it


SAMPLES: Mapping[str, tuple[Callable[[Path], Any], Callable[[Path], object]]] = {
    "D4RL": (lambda path: read_d4rl(path, HOPPER), _d4rl),
    "Minari": (lambda path: read_minari(path / "hopper-tiny-v0", HOPPER), _minari),
    "transitions": (Transitions.load, _transitions),
    "JPEG": (read_picture, _picture("JPEG")),
    "PNG": (read_picture, _picture("PNG", "RGBA")),
    "TIFF": (read_picture, _picture("TIFF", compression="tiff_lzw")),
    "HEIC": (read_picture, _picture("HEIF", "RGBA")),
    "photos": (_read_photos, _photos),
    "video": (
        lambda path: sum(1 for _ in read_frames(path)),
        lambda path: make_video(path.with_suffix(".mp4"), frames=6, codec="libx264").rename(path),
    ),
    "agent": (load_agent, lambda path: save_agent(path, "bc", 0.95)),
    "episode": (load_episode, PlayedEpisode(HOPPER, np.zeros((6, 6)), np.ones(5), 0.008, True).save),
    "expert": (load_expert, lambda path: shutil.copy("experts/hopper.safetensors", path)),
    "style": (load_model, save_style),
    "packed": (read_packed, _packed),
    "graph": (load_onnx, write_bc),
    "policy's graph": (_act, _pruned_policy),
    "wheel": (lambda path: read_member(path, "weights.bin"), _wheel),
    "pickle": (lambda path: load_arrays(path.read_bytes(), str(path)), _pickle),
    "params.yaml": (load_config, lambda path: shutil.copy("params.yaml", path)),
}
"""Readers, and functions that write a file for them."""
