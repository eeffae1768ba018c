"""A small good file for every reader of users' files, to damage; and the readers, in bounded memory."""

import io
import logging
import pickle
import resource
import shutil
import tarfile
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
from singleshot.export.classifier import load_classifier
from singleshot.export.model_files import open_network
from singleshot.export.onnx_model import load_onnx, read_card
from singleshot.export.rollout import load_policy
from singleshot.export.to_onnx import card_of, to_onnx, with_sparse_initializers
from singleshot.io.images import read_picture, read_rgb, read_size
from singleshot.io.packages import read_member
from singleshot.io.tensor_file import read_tensor_file
from singleshot.rl.agents import load_agent
from singleshot.rl.data.d4rl import read_d4rl
from singleshot.rl.data.minari import read_minari, write_minari
from singleshot.rl.data.transitions import Episode, Transitions
from singleshot.rl.environments import LOCOMOTION
from singleshot.rl.evaluation import episode as played
from singleshot.rl.experts.policy import load_expert
from singleshot.sparse.packed import pack, read_packed
from singleshot.style.backbones import Backbone, load_backbone, save_backbone
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.datasets.weights import load_arrays
from singleshot.style.model_file import load_model
from singleshot.style.video.reader import probe, read_frames, read_segment

HOPPER = (11, 3)
"""Sizes of a state and an action."""


MEMORY_BYTES = 1 << 29
"""That reading a small file may take besides what the readers' libraries do."""


def read(reader: str, path: Path) -> None:
    """Read a file by one of :data:`READERS`, in bounded memory; this is for a process of its own."""
    logging.disable()
    read_it = READERS[reader]
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    taken = int(status.partition("VmData:")[2].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (taken + MEMORY_BYTES, resource.RLIM_INFINITY))
    read_it(path)


def _read_photos(directory: Path) -> None:
    photos = PhotoSet.open(directory)
    for name in photos.names:
        photos.read(name)


def _act(path: Path) -> None:
    policy = load_policy(path)
    (size,) = read_card(path).inputs[0].shape[1:]
    policy.act({}, torch.zeros(1, 1, int(size)), torch.zeros(1, 1, *policy.noise_shape))


def _read_last_half(path: Path) -> None:
    info = probe(path)
    for _ in read_segment(path, info.segment(info.frames // 2, info.frames)):
        pass


READERS: Mapping[str, Callable[[Path], Any]] = {
    "params.yaml": load_config,
    "picture": read_rgb,
    "picture to stylise": read_picture,
    "picture's size": read_size,
    "photos": _read_photos,
    "member of a wheel": lambda path: read_member(path, "weights.bin"),
    "pickled arrays": lambda path: load_arrays(path.read_bytes(), str(path)),
    "classifier": load_classifier,
    "graph": load_onnx,
    "policy's graph": _act,
    "graph's card": read_card,
    "agent": load_agent,
    "episode": played.load_episode,
    "D4RL file": lambda path: read_d4rl(path, LOCOMOTION["Hopper"]),
    "Minari data set": lambda path: read_minari(path / "hopper-tiny-v0", LOCOMOTION["Hopper"]),
    "transitions": Transitions.load,
    "expert": load_expert,
    "packed file": read_packed,
    "safetensors file": read_tensor_file,
    "backbone": load_backbone,
    "style": load_model,
    "video": probe,
    "video's frames": lambda path: sum(1 for _ in read_frames(path)),
    "video's segment": _read_last_half,
}


def _picture(file_format: str, mode: str = "RGB", **options: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        noise = np.random.default_rng(0).integers(0, 256, (40, 48, 4), np.uint8)
        picture = Image.fromarray(noise, "RGBA").convert(mode)
        picture.save(path, file_format, **options)

    return write


def _video(codec: str, suffix: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        make_video(path.with_suffix(f".{suffix}"), frames=6, codec=codec).rename(path)

    return write


def _d4rl(path: Path) -> None:
    rows, (state, action) = 40, HOPPER
    arrays = {
        "observations": np.random.default_rng(0).standard_normal((rows, state), np.float32),
        "actions": np.zeros((rows, action), np.float32),
        "rewards": np.ones(rows, np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.arange(rows) % 10 == 9,
    }
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, compression="gzip")


def _episodes() -> list[Episode]:
    state, action = HOPPER
    return [
        Episode(np.zeros((6, state)), np.zeros((5, action), np.float32), np.ones(5), terminated=True)
        for _ in range(3)
    ]


def _minari(path: Path) -> None:
    write_minari(_episodes(), path, "hopper-tiny-v0", LOCOMOTION["Hopper"], "none")


def _transitions(path: Path) -> None:
    state, action = HOPPER
    Transitions.cast(
        np.zeros((9, state)), np.zeros((9, action)), np.zeros(9), np.zeros((9, state)), np.zeros(9)
    ).save(path)


def _packed(values: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        save_style(path)
        path.write_bytes(pack(read_tensor_file(path), values))  # type: ignore[arg-type]

    return write


def _backbone(path: Path) -> None:
    sizes = ((3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3))
    convolutions = [(torch.zeros(o, i, side, side), torch.zeros(o)) for i, o, side in sizes]
    save_backbone(Backbone("alexnet", convolutions, torch.zeros(3), torch.ones(3)), path)


def _pruned_policy(path: Path) -> None:
    source = save_agent(path.with_suffix(".safetensors"), "bcq", 0.95)
    network = open_network(source, "masked")
    graph = to_onnx(network, card_of(network, "Hopper/bcq/random-0.95/seed-0", "0" * 40, source), opset=20)
    onnx.save(with_sparse_initializers(graph), path)


def _episode(path: Path) -> None:
    played.PlayedEpisode(LOCOMOTION["Hopper"], np.zeros((6, 6)), np.ones(5), 0.008, True).save(path)


def _photos(path: Path) -> None:
    path.mkdir()
    _picture("JPEG")(path / "a.jpg")
    with zipfile.ZipFile(path / "photos.zip", "w") as archive:
        archive.writestr("a.jpg", (path / "a.jpg").read_bytes())
    (path / "a.jpg").unlink()


def _wheel(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("weights.bin", b"0123456789" * 400)


def _sdist(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("weights.bin")
        member.size = 4000
        archive.addfile(member, io.BytesIO(b"0123456789" * 400))


def _pickle(path: Path) -> None:
    content = pickle.dumps({"layer": {"kernel": np.arange(6.0).reshape(2, 3)}}, protocol=3)
    path.write_bytes(content.replace(b"numpy._core", b"numpy.core"))  # as older versions call it


SAMPLES: Mapping[str, tuple[str, Callable[[Path], object]]] = {
    "D4RL": ("D4RL file", _d4rl),
    "Minari": ("Minari data set", _minari),
    "transitions": ("transitions", _transitions),
    "JPEG": ("picture", _picture("JPEG")),
    "GIF": ("picture", _picture("GIF")),
    "PNG": ("picture to stylise", _picture("PNG", "RGBA")),
    "TIFF": ("picture to stylise", _picture("TIFF", compression="tiff_lzw")),
    "WebP": ("picture to stylise", _picture("WEBP")),
    "HEIC": ("picture to stylise", _picture("HEIF", "RGBA")),
    "AVIF": ("picture to stylise", _picture("AVIF", "RGBA")),
    "JPEG 2000": ("picture to stylise", _picture("JPEG2000", "RGBA")),
    "photos": ("photos", _photos),
    "MP4": ("video", _video("libx264", "mp4")),
    "MP4's frames": ("video's frames", _video("libx264", "mp4")),
    "MP4's segment": ("video's segment", _video("libx264", "mp4")),
    "AVI": ("video's frames", _video("mpeg4", "avi")),
    "Matroska": ("video's frames", _video("mpeg4", "mkv")),
    "agent": ("agent", lambda path: save_agent(path, "bc", 0.95)),
    "episode": ("episode", _episode),
    "expert": ("expert", lambda path: shutil.copy("experts/hopper.safetensors", path)),
    "style": ("style", save_style),
    "backbone": ("backbone", _backbone),
    "safetensors": ("safetensors file", save_style),
    "packed": ("packed file", _packed("raw")),
    "packed int8": ("packed file", _packed("int8")),
    "graph": ("graph", lambda path: write_bc(path)),
    "graph's card": ("graph's card", lambda path: write_bc(path)),
    "policy's graph": ("policy's graph", _pruned_policy),
    "wheel": ("member of a wheel", _wheel),
    "sdist": ("member of a wheel", _sdist),
    "pickle": ("pickled arrays", _pickle),
    "params.yaml": ("params.yaml", lambda path: shutil.copy("params.yaml", path)),
}
