"""Learning the style of a user's own painting, in a given time, in a folder where it can continue later."""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm import tqdm

import singleshot
from singleshot.errors import UserError, explained
from singleshot.io.folders import MODEL, user_cache
from singleshot.io.whole_file import sha256_of, whole_file
from singleshot.job import Artifact, Checkpoint, Job, Progress, Task
from singleshot.style.backbones import save_backbone
from singleshot.style.datasets.packing import PhotosConfig, PhotosParams, fetch_photos
from singleshot.style.datasets.paintings import PaintingConfig, PaintingParams, fetch_painting
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.datasets.weights import read_backbone
from singleshot.style.johnson import TrainStyleParams
from singleshot.style.model_file import load_model
from singleshot.style.schedule import FAST, SIZES, style_weight
from singleshot.style.start import START
from singleshot.style.training import train_style

WORK = ".training"
"""Folder of a style's training beside its network, with which more minutes go on."""
UNSEEN = ("chelsea", "coffee", "astronaut")
"""Photos of scikit-image on which a network is judged, not trained."""
LONG_SIDE_PX = 768
"""Long side to which larger paintings are scaled."""


def learn(name: str, painting: Path, photos: Path | None, seconds: float, folder: Path) -> None:
    """Train a network for some `seconds`, on the photos of the packages or those in a folder.

    The training continues an earlier one in `folder` of the same painting and photos, even a finished one if
    that had less time. The network is written there with its card, the painting and a contact sheet,
    and a preview during training.

    Raises:
        UserError: the painting or the photos can't be read, or the folder has another network.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = _prepare(name, painting, photos, folder)
    if (folder / MODEL).exists():
        _, card = load_model(folder / MODEL)
        with explained(f"{folder}: its {MODEL} isn't of learn-style", "give another name, or remove it"):
            had = float(card.settings["seconds"])
        if had >= seconds:
            raise UserError(
                f"{folder}: has a network of {had / 60:g} minutes; give more minutes, or another name"
            )
    weight = style_weight(PhotoSet.open(inputs["photos"]), inputs, device)
    johnson = dataclasses.replace(SIZES[-1], style_weight=weight, learning_rate=FAST, augment=True)
    _train(TrainStyleParams(name, johnson, seconds=seconds, unseen=UNSEEN), inputs, folder, device)


def _prepare(name: str, painting: Path, photos: Path | None, folder: Path) -> dict[str, Path]:
    """The files that a training reads; those of an earlier call are kept if they were made from the same."""
    work, made_from = folder / WORK, folder / WORK / "made_from.json"
    wanted = {"painting": sha256_of(painting), "photos": str(photos.resolve()) if photos else None}
    if not made_from.is_file() or made_from.read_bytes() != json.dumps(wanted).encode():
        if (folder / MODEL).exists():
            raise UserError(
                f"{folder}: has a network of another painting or photos; give another name, or remove it"
            )
        shutil.rmtree(work, ignore_errors=True)
        own = PhotosConfig("folder", str(photos.resolve())) if photos else PhotosConfig(held_out=UNSEEN)
        picture = PaintingParams(name, PaintingConfig(str(painting.resolve())), LONG_SIDE_PX)
        try:
            _run(fetch_painting, picture, work / "painting")
            _run(fetch_photos, PhotosParams(own, 0), work / "photos")
            _run(fetch_photos, PhotosParams(PhotosConfig(short_side_px=1024), 0), work / "samples")
        except UserError:  # nothing is left of a style that can't be learned
            shutil.rmtree(work)
            with suppress(OSError):  # the folder has files of others
                folder.rmdir()
            raise
        with whole_file(made_from) as file:
            file.write_text(json.dumps(wanted), encoding="utf-8")
    return {
        "photos": work / "photos",
        "painting": work / "painting/painting.png",
        "samples": work / "samples",
        "start": START,
        "backbone": _weights("vgg16"),
        "alexnet": _weights("alexnet"),
    }


def _run(task: Task, params: Any, output: Path) -> None:
    output.mkdir(parents=True)
    for _ in task([Job(params, params.inputs(), output)]):
        pass


def _weights(network: Literal["vgg16", "alexnet"]) -> Path:
    path = user_cache("backbones") / f"{network}.safetensors"
    if not path.exists():
        with whole_file(path) as file:
            save_backbone(read_backbone(network, "packages")[0], file)
    return path


def _train(params: TrainStyleParams, inputs: Mapping[str, Path], folder: Path, device: str) -> None:
    checkpoint, result = folder / WORK / "checkpoint", folder / WORK / "result"
    shutil.rmtree(result, ignore_errors=True)
    result.mkdir()
    state = checkpoint.read_bytes() if checkpoint.exists() else None
    job = Job(params, inputs, result, device, state, f"singleshot {singleshot.__version__}")
    with tqdm(total=1.0, bar_format="{percentage:3.0f}% {bar} {elapsed}, {remaining} left") as progress:
        for event in train_style([job]):
            match event:
                case Progress(fraction):
                    progress.update(fraction - progress.n)
                case Checkpoint(state=reached):
                    with whole_file(checkpoint) as file:
                        file.write_bytes(reached)
                case Artifact(name, content) if name.startswith("previews/"):
                    with whole_file(folder / "preview.jpg") as file:
                        file.write_bytes(content)
    shutil.copyfile(inputs["painting"], result / "painting.png")
    card = dataclasses.asdict(load_model(result / MODEL)[1])
    text = json.dumps(card, indent=2, ensure_ascii=False) + "\n"
    (result / "card.json").write_text(text, encoding="utf-8")
    for file in result.iterdir():
        file.replace(folder / file.name)
