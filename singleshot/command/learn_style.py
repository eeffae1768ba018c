"""`singleshot learn-style`: train a network for a user's own painting, in a given time."""

import dataclasses
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import joblib
import torch
from PIL import Image
from tqdm import tqdm

import singleshot
from singleshot.command.styles import MODEL
from singleshot.errors import UserError
from singleshot.folders import LEARNED
from singleshot.io.user_cache import user_cache
from singleshot.io.whole_file import sha256_of, whole_file
from singleshot.job import Artifact, Checkpoint, Job, Progress, Task
from singleshot.style.backbones import save_backbone
from singleshot.style.datasets.packing import PhotosConfig, PhotosParams, fetch_photos
from singleshot.style.datasets.paintings import PaintingConfig, PaintingParams, fetch_painting
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.datasets.weights import read_backbone
from singleshot.style.evaluation.verdict import STROKES, in_words
from singleshot.style.johnson import TrainStyleParams
from singleshot.style.model_file import load_model
from singleshot.style.schedule import FAST, SHOW_SECONDS, SIZES, style_weight
from singleshot.style.start import START
from singleshot.style.training import train_style

WORK = ".training"
"""Folder of a style's training beside its network, with which more minutes go on."""
UNSEEN = ("chelsea", "coffee", "astronaut")
"""Photos of scikit-image on which a network is judged, not trained."""
LONG_SIDE_PX = 768
"""Long side to which larger paintings are scaled."""
FEW_BATCHES = 100
"""Number of batches after which a style's colours and strokes show, as measured with four paintings."""


def learn_style(painting: Path, photos: Path | None, name: str | None, seconds: float) -> None:
    """Train a network for some `seconds`, on the photos of the packages or those in a folder.

    The training goes on from an earlier one of the same painting and photos, also from a finished one if that
    had less time. The network is written to `LEARNED/<name>/` with its card and contact sheet, and a preview
    during training. The default name is the painting's.

    Raises:
        UserError: the painting or the photos can't be read, or the name is taken.
    """
    name = name or re.sub(r"[^a-z0-9]+", "-", painting.stem.lower()).strip("-")
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise UserError(f"{name!r} can't be a style's name; give --name one of a to z, 0 to 9, - and _")
    cores = joblib.cpu_count()
    torch.set_num_threads(cores)
    Image.MAX_IMAGE_PIXELS = None  # Pillow's limit is for strangers' files
    device = "cuda" if torch.cuda.is_available() else "cpu"
    output = LEARNED / name
    inputs = _prepare(output, name, painting, photos)
    if (output / MODEL).exists():
        _, card = load_model(output / MODEL)
        if (had := card.settings["seconds"]) >= seconds:
            raise UserError(
                f"{output}: has a network of {had / 60:g} minutes; give more --minutes, and it goes on, or "
                "another --name"
            )
    photo_set = PhotoSet.open(inputs["photos"])
    weight = style_weight(photo_set, inputs, device)
    johnson = dataclasses.replace(SIZES[-1], style_weight=weight, learning_rate=FAST, augment=True)
    params = TrainStyleParams(name, johnson, seconds=seconds, unseen=UNSEEN)
    where = f"{cores} core{'s' * (cores > 1)}" if device == "cpu" else device
    print(
        f"{name}: {seconds / 60:.1f} minutes on {where}, of {len(photo_set):,} photos; the larger pictures "
        f"and network, the more time there is\npreview: {output / 'preview.jpg'}, renewed every "
        f"{SHOW_SECONDS:.0f} s or more; an interruption costs a minute at most"
    )
    _train(params, inputs, output, device)
    _finish(output)


def _prepare(output: Path, name: str, painting: Path, photos: Path | None) -> dict[str, Path]:
    """The files that a training reads; those of an earlier call are kept if they were made from the same."""
    work, made_from = output / WORK, output / WORK / "made_from.json"
    wanted = {"painting": sha256_of(painting), "photos": str(photos.resolve()) if photos else None}
    if not made_from.exists() or json.loads(made_from.read_text("utf-8")) != wanted:
        if (output / MODEL).exists():
            raise UserError(
                f"{output}: has a network of another painting or other photos; give another --name, or "
                "remove it"
            )
        shutil.rmtree(work, ignore_errors=True)
        own = PhotosConfig("folder", str(photos.resolve())) if photos else PhotosConfig(held_out=UNSEEN)
        print("reads the painting and the photos …", flush=True)
        picture = PaintingParams(name, PaintingConfig(str(painting.resolve())), LONG_SIDE_PX)
        _run(fetch_painting, picture, work / "painting")
        _run(fetch_photos, PhotosParams(own, 0), work / "photos")
        _run(fetch_photos, PhotosParams(PhotosConfig(short_side_px=1024), 0), work / "samples")
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
    try:
        for _ in task([Job(params, params.inputs(), output)]):
            pass
    except UserError:
        shutil.rmtree(output.parent.parent)  # nothing is left of a style that can't be learned
        raise


def _weights(network: Literal["vgg16", "alexnet"]) -> Path:
    path = user_cache("backbones") / f"{network}.safetensors"
    if not path.exists():
        with whole_file(path) as file:
            save_backbone(read_backbone(network, "packages")[0], file)
    return path


def _train(params: TrainStyleParams, inputs: Mapping[str, Path], output: Path, device: str) -> None:
    checkpoint, result = output / WORK / "checkpoint", output / WORK / "result"
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
                    with whole_file(output / "preview.jpg") as file:
                        file.write_bytes(content)
    shutil.copyfile(inputs["painting"], result / "painting.png")
    for file in result.iterdir():
        file.replace(output / file.name)


def _finish(output: Path) -> None:
    _, card = load_model(output / "model.safetensors")
    (output / "card.json").write_text(json.dumps(dataclasses.asdict(card), indent=2) + "\n", encoding="utf-8")
    looks = f"on photos that it has not seen: {in_words(card.scores)}"
    if card.steps < FEW_BATCHES:
        looks = f"not yet a style: it is faint before some {FEW_BATCHES} batches; give more --minutes"
    johnson = card.settings["johnson"]
    print(
        f"{output}: model.safetensors, card.json, contact_sheet.jpg; {card.steps:,} batches, at last of "
        f"{johnson['batch_size']} x {johnson['image_px']} px, a network of width {johnson['width']}\n"
        f"{looks} ({card.scores[STROKES]:.0%} of a photo's distance to the painting is left, by AlexNet)\n"
        f"next: singleshot stylize --style {output.name} photo.jpg"
    )
