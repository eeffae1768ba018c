"""What a style becomes of several starts: `python -m benchmarks.style_begin`.

From each start, a network is trained for a number of batches of one photo, by default of learn-style's
smallest size, in float32, then judged on photos that no training saw. `--batches 585:128,260:192` are 585 of
128 px, then 260 of 192 px, as many as learn-style makes in five minutes on two quiet cores of an AMD EPYC.
VGG19 and AlexNet, by which style ratios are measured, trained none of the networks. With `--gatys`,
optimisation of the same photos follows, in as much processor time as the last training took.
A contact sheet for each painting is written to `--output`. Needs the stage pictures.
"""

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import TypeAlias

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.command import check_inputs, positive, run_main
from benchmarks.paired import heading, print_table
from benchmarks.style_levels import colour_distance
from pipelines.catalog.paths import BACKBONES, PHOTOS, SAMPLES
from pipelines.catalog.styles import judges, normalized, painting_of, trained
from pipelines.config.params import configuration
from singleshot.io.images import encode_jpeg, middle, read_rgb
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.backbones import load_backbone
from singleshot.style.contact_sheet import contact_sheet
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.evaluation.evaluator import Evaluator, PictureScores
from singleshot.style.gatys import GatysConfig, Iterate, optimize
from singleshot.style.johnson import JohnsonConfig, Trainer, initial_network, open_levels, open_loss
from singleshot.style.schedule import FAST, SIZES, style_weight
from singleshot.style.start import START
from singleshot.style.transformer_net import TransformerNet

RANDOM = "random"
Phases: TypeAlias = tuple[tuple[int, int], ...]
"""Numbers of batches and the sides of their photos, in pixels, in turn."""
COLUMNS = ("painting", "begins with", "batches", "seconds", *PictureScores._fields, "colours' distance")
SIDE_PX = 256


def main() -> None:
    """Print a Markdown table with a row for each training: means over the photos."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("starts", nargs="*", default=[RANDOM, str(START)], help="files, or `random`")
    parser.add_argument(
        "--batches",
        type=_phases,
        nargs="+",
        default=[_phases("150")],
        metavar="N[:PX][,N:PX]",
        help="of photos of PX pixels",
    )
    parser.add_argument("--paintings", type=Path, nargs="+", default=[painting_of("waves")])
    parser.add_argument("--photos", type=Path, help="folder of photos; by default those of style.quality")
    parser.add_argument("--levels", type=float, default=SIZES[-1].levels_weight, help="weight of their loss")
    parser.add_argument("--seed", type=int, default=0, help="of random weights and the photos' order")
    parser.add_argument("--width", type=positive(int), default=SIZES[-1].width, help="of the network")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--gatys", action="store_true", help="also optimise the photos")
    parser.add_argument("--output", type=Path, default=Path("build/style_begin"))
    options = parser.parse_args()
    check_inputs(BACKBONES, SAMPLES, *options.paintings, stages="pictures")
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    print(heading("torch"))
    print_table(COLUMNS, (row for painting in options.paintings for row in _rows(painting, options)))


def _rows(painting: Path, options: argparse.Namespace) -> Iterator[Sequence[object]]:
    evaluator = Evaluator({**judges("swirls"), "painting": painting}, SIDE_PX, "cpu")
    photos = _photos(options.photos)
    name = painting.parent.name if painting.name == "painting.png" else painting.stem
    shown, captions, seconds = list(photos), [f"photo, for {name}"] * len(photos), 0.0
    config, settings = _config(painting, options), StylizeSettings(precision="float32")
    for start in options.starts:
        for phases in options.batches:
            network, seconds = _trained(painting, start, config, phases, options)
            pictures = [stylize(network, photo[None], settings)[0] for photo in photos]
            beginning = Path(start).stem
            batches = ", then ".join(f"{count:,} of {side} px" for count, side in phases)
            yield name, beginning, batches, f"{seconds:.0f}", *_means(evaluator, pictures, photos)
            shown += pictures
            captions += [f"{beginning}\n{batches}"] * len(photos)
    if options.gatys:
        pictures, iterations = _optimised(evaluator, photos, seconds / len(photos))
        means = _means(evaluator, pictures, photos)
        yield name, "optimisation", f"{iterations} iterations", f"{seconds:.0f}", *means
        shown += pictures
        captions += [f"optimisation\n{iterations} iterations"] * len(photos)
    sheet = contact_sheet([middle(picture, SIDE_PX) for picture in shown], captions, columns=len(photos))
    (options.output / f"{name}.jpg").write_bytes(encode_jpeg(sheet))


def _phases(text: str) -> Phases:
    """`585:128,260:192` as numbers of batches and sides of their photos."""
    number = positive(int)
    phases = [phase.partition(":") for phase in text.split(",")]
    return tuple((number(count), number(side or str(SIZES[-1].image_px))) for count, _, side in phases)


def _photos(folder: Path | None) -> list[Tensor]:
    """Photos (3, H, W) that no network was trained on."""
    if folder:
        return [read_rgb(file, short_side=SIDE_PX) for file in sorted(folder.glob("*.jpg"))]
    samples = PhotoSet.open(SAMPLES)
    return [
        samples.read(name, short_side=SIDE_PX)
        for name in configuration("profile=default").style.quality.photos
    ]


def _inputs(painting: Path) -> Mapping[str, Path]:
    return {"painting": painting, "backbone": trained("vgg16")}


def _config(painting: Path, options: argparse.Namespace) -> JohnsonConfig:
    """What all trainings of a painting share."""
    return replace(
        SIZES[-1],
        width=options.width,
        levels_weight=options.levels,
        style_weight=style_weight(PhotoSet.open(PHOTOS), _inputs(painting), "cpu"),
        learning_rate=FAST,
    )


def _trained(
    painting: Path, start: str, config: JohnsonConfig, phases: Phases, options: argparse.Namespace
) -> tuple[TransformerNet, float]:
    """A network trained for this benchmark, and its seconds of processor time."""
    inputs, photos = _inputs(painting), PhotoSet.open(PHOTOS)
    device, seed, dtype = options.device, options.seed, torch.float32
    network = initial_network(config.width, seed, None if start == RANDOM else Path(start)).to(device)
    loss, levels = open_loss(inputs, config, device, dtype), open_levels(inputs, config)
    sides = [side for count, side in phases for _ in range(count)]
    trainer = Trainer(network, loss, config, levels=levels, batches=len(sides), seed=seed, dtype=dtype)
    began = process_time()
    for step, side in enumerate(tqdm(sides, f"{painting.stem}, {Path(start).stem}", unit="batch")):
        trainer.update(photos.batch(seed, step, 1, side, augment=True))
    return network.cpu().eval(), process_time() - began


def _optimised(evaluator: Evaluator, photos: Sequence[Tensor], seconds: float) -> tuple[list[Tensor], int]:
    """The photos by Gatys et al.'s optimisation, each in some seconds, and the iterations that one had."""
    vgg19 = load_backbone(normalized("vgg19"), pooling="average")
    pictures, iterations = [], 0
    for photo in photos:
        iterates = optimize(photo, evaluator.painting.pixels, vgg19, GatysConfig(iterations=10_000))
        last = _last_within(seconds, iterates)
        pictures.append(last.picture.clamp(0, 1))
        iterations = last.iteration
    return pictures, iterations


def _last_within(seconds: float, iterates: Iterator[Iterate]) -> Iterate:
    """The last that is there after some seconds of CPU time."""
    end = process_time() + seconds
    *_, last = itertools.takewhile(lambda _: process_time() < end, iterates)
    return last


def _means(evaluator: Evaluator, pictures: Sequence[Tensor], photos: Sequence[Tensor]) -> Iterator[str]:
    scores = [
        [
            *evaluator.scores(evaluator.represent(picture), evaluator.represent(photo)),
            colour_distance(picture, evaluator.painting.pixels),
        ]
        for picture, photo in zip(pictures, photos, strict=True)
    ]
    yield from (f"{value:.3g}" for value in torch.tensor(scores).mean(dim=0).tolist())


if __name__ == "__main__":
    run_main(main)
