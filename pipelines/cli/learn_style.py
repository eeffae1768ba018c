"""`python -m pipelines learn-style`: train a network for a user's own painting, in a given time."""

import dataclasses
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import joblib

from pipelines.catalog.paths import LEARNED
from pipelines.config.params import Config, load_config
from pipelines.engine.cells import Cell, CellStore
from pipelines.engine.execution import ExecutorConfig, device_of
from pipelines.engine.processes import ends_with_its_parents
from pipelines.engine.remote_cells import open_store
from pipelines.engine.stage import CELLS, fan_out
from pipelines.engine.sweep import Recorder
from singleshot.errors import UserError
from singleshot.io.whole_file import whole_file
from singleshot.style.datasets.fetch import (
    PaintingConfig,
    PaintingParams,
    PhotosConfig,
    PhotosParams,
    WeightsParams,
    fetch_painting,
    fetch_photos,
    fetch_weights,
)
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.evaluation.verdict import STROKES, in_words
from singleshot.style.johnson import TrainStyleParams
from singleshot.style.model_file import load_model
from singleshot.style.schedule import FAST, SIZES, style_weight
from singleshot.style.start import START
from singleshot.style.training import PREVIEW_SECONDS, train_style

WORK = Path("build/learn-style")
PREVIEW = "preview.jpg"
FEW_BATCHES = 100
"""Number of batches after which a style's colours and strokes show, as measured with four paintings."""


def learn_style(painting: Path, photos: Path | None, name: str | None, seconds: float) -> None:
    """Train a network for some `seconds`, on the configured photos or those in a folder.

    The training goes on where an earlier call with the same arguments was interrupted. The network is written
    to `LEARNED/<name>/` with its card and contact sheet, and a preview during training. The default name is
    the painting's.

    Raises:
        UserError: the painting or the photos can't be read, or the name is taken.
    """
    config = load_config()
    name = name or re.sub(r"[^a-z0-9]+", "-", painting.stem.lower()).strip("-")
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise UserError(f"{name!r} can't be a style's name; give --name one of a to z, 0 to 9, - and _")
    if name in config.style.training.styles:
        raise UserError(f"{name!r} is a style of the pipeline (params.yaml); give another --name")
    # There is only one training, so it runs here on all cores; a Ray cluster could not share it out.
    cores = joblib.cpu_count()
    executor = ExecutorConfig("local", num_cpus=cores, device=config.executor.device)
    store, output = open_store(CELLS), LEARNED / name
    with ends_with_its_parents():
        inputs = _prepare(config, name, painting, photos, executor, store)
        device, photo_set = device_of(executor, gpu=True), PhotoSet.open(inputs["photos"])
        weight = style_weight(photo_set, inputs, device)
        johnson = dataclasses.replace(SIZES[-1], style_weight=weight, learning_rate=FAST, augment=True)
        params = TrainStyleParams(name, johnson, seconds=seconds, unseen=config.style.quality.photos)
        cell = Cell(name, train_style, params, inputs, {"style": name}, size=max(1, round(seconds)))
        if not store.has(cell):
            if (output / "model.safetensors").exists():
                raise UserError(
                    f"{output}: has a finished network, of another painting, other photos, another training "
                    "time or another version of this program; give another --name, or remove it"
                )
            where = f"{cores} core{'s' * (cores > 1)}" if device == "cpu" else device
            print(
                f"{name}: {seconds / 60:.1f} minutes on {where}, of {len(photo_set):,} photos; the larger "
                f"pictures and network, the more time there is\npreview: {output / PREVIEW}, renewed every "
                f"{PREVIEW_SECONDS:.0f} s or more; an interruption costs a minute at most"
            )
        fan_out([cell], executor, store, _Preview(output / PREVIEW), gpu=True, unit="second")
    store.link(cell, output)
    shutil.copyfile(inputs["painting"], output / "painting.png")
    _finish(output)


class _Preview(Recorder):
    def __init__(self, path: Path) -> None:
        self.path = path

    def artifact(self, cell: Cell, name: str, file: Path) -> None:  # noqa: ARG002
        """Replace the preview as a whole: a viewer may read it at any time."""
        if name.startswith("previews/"):
            with whole_file(self.path) as preview:
                shutil.copyfile(file, preview)


def _prepare(
    config: Config, name: str, painting: Path, photos: Path | None, executor: ExecutorConfig, store: CellStore
) -> dict[str, Path]:
    work = WORK / name
    given = PhotosConfig("folder", str(photos.resolve())) if photos else config.style.photos
    shards = [PhotosParams(given, shard) for shard in range(given.shards)]
    samples = PhotosParams(dataclasses.replace(config.style.samples, shards=1), 0)
    own = PaintingParams(name, PaintingConfig(str(painting.resolve())), config.style.paintings.long_side_px)
    shutil.rmtree(work, ignore_errors=True)  # another call's photos may have had more shards
    cells = [
        Cell("painting", fetch_painting, own, own.inputs()),
        *(Cell(f"photos/{shard.shard:02}", fetch_photos, shard, shard.inputs()) for shard in shards),
        Cell("samples", fetch_photos, samples, samples.inputs()),
    ]
    _compute(cells, work, executor, store)
    # The training reads the weights as they are; only other methods use normalised weights.
    normalization = dataclasses.replace(config.style.weights.normalization, crops=1)
    for backbone in ("vgg16", "alexnet"):
        weights = WeightsParams(backbone, config.style.weights.source, normalization)
        cell = Cell(backbone, fetch_weights, weights, {"photos": work / "photos"})
        _compute([cell], work, executor, store)
    return {
        "photos": work / "photos",
        "painting": work / "painting/painting.png",
        "backbone": work / "vgg16/weights.safetensors",
        "start": START,
        "samples": work / "samples",
        "alexnet": work / "alexnet/weights.safetensors",
    }


def _compute(cells: Sequence[Cell], out: Path, executor: ExecutorConfig, store: CellStore) -> None:
    print(f"{', '.join(dict.fromkeys(cell.name.split('/')[0] for cell in cells))}: ", end="", flush=True)
    fan_out(cells, executor, store, Recorder())
    for cell in cells:
        store.link(cell, out / cell.name)


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
        f"next: python -m pipelines stylize -s {output.name} -i photo.jpg -o out"
    )
