"""Results of `learn-style` beside those of optimisation: `python -m benchmarks.learned_style NAME…`.

Networks and Gatys et al.'s optimisation put the same photos into the style of the painting that
`learn-style` has learned as NAME, or under several names. Networks were trained with VGG16, the optimisation
uses VGG19, and none uses AlexNet. Needs the stage pictures, and some minutes per photo. Pictures are written
to `--output` for inspection.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from benchmarks.command import check_inputs, positive, run_main
from benchmarks.paired import heading, print_table
from pipelines.catalog.paths import BACKBONES, LEARNED, SAMPLES
from pipelines.catalog.styles import judges, normalized
from pipelines.cli.learn_style import WORK
from pipelines.config.params import configuration
from singleshot.errors import UserError
from singleshot.io.images import encode_png, read_rgb
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.backbones import load_backbone
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.evaluation.evaluator import Evaluator, JudgedPicture
from singleshot.style.gatys import GatysConfig, optimize
from singleshot.style.model_file import load_model
from tasks.measure_styles import QualityConfig

LAYERS = ("relu1_1", "relu3_1", "relu5_1")
"""Layers of VGG19 for colours, strokes and shapes."""
COLUMNS = (
    "photo",
    "by",
    "style ratio, VGG16",
    "VGG19",
    "AlexNet",
    *(f"Gram distance, VGG19's {layer}" for layer in LAYERS),
    "content loss",
    "SSIM",
)


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="name", help="names of styles, as given to learn-style")
    parser.add_argument(
        "--photos", type=Path, help="folder of photos (default: those of the profile default)"
    )
    parser.add_argument("--iterations", type=positive(int), default=200, help="of the optimisation")
    parser.add_argument(
        "--output", type=Path, default=Path("build/learned_style"), help="folder for pictures"
    )
    options = parser.parse_args()
    styles = {name: learned(name) for name in options.names}
    check_inputs(BACKBONES, SAMPLES, stages="pictures")
    options.output.mkdir(parents=True, exist_ok=True)
    print(heading("torch"))
    painting, _ = styles[options.names[0]]
    models = {name: model for name, (_, model) in styles.items()}
    config = configuration("profile=default").style
    photos = dict(_photos(options.photos, config.quality))
    evaluator = Evaluator(
        {**judges(config.training.styles[0]), "painting": painting}, config.quality.size_px, "cpu"
    )
    gatys = GatysConfig(iterations=options.iterations, size_px=config.quality.size_px)
    print_table(COLUMNS, _rows(evaluator, models, photos, gatys, options.output))


def learned(name: str) -> tuple[Path, Path]:
    """The painting of a learned style, and its model.

    Raises:
        UserError: no style of that name was learned.
    """
    painting, model = WORK / name / "painting/painting.png", LEARNED / name / "model.safetensors"
    if not (painting.exists() and model.exists()):
        raise UserError(f"{model}: not there; `python -m pipelines learn-style` makes it")
    return painting, model


def _photos(folder: Path | None, quality: QualityConfig) -> Iterator[tuple[str, Tensor]]:
    """Photos (3, H, W) in [0, 1] by name, of the size of `quality`; without a folder, its own.

    Raises:
        UserError: a file of the folder is no picture.
    """
    if folder:
        for path in sorted(folder.iterdir()):
            yield path.stem, read_rgb(path, short_side=quality.size_px)
        return
    samples = PhotoSet.open(SAMPLES)
    for name in quality.photos:
        yield name, samples.read(name, short_side=quality.size_px)


def _rows(
    evaluator: Evaluator,
    models: Mapping[str, Path],
    photos: Mapping[str, Tensor],
    gatys: GatysConfig,
    output: Path,
) -> Iterator[tuple[str, ...]]:
    networks = {name: load_model(model) for name, model in models.items()}
    vgg19 = load_backbone(normalized("vgg19"), pooling="average")
    for name, pixels in photos.items():
        photo = evaluator.represent(pixels)
        *_, last = optimize(photo.pixels, evaluator.painting.pixels, vgg19, gatys)
        pictures = {
            "the photo itself": photo.pixels,
            **{
                f"network {own}, {card.steps:,} batches": stylize(
                    network, photo.pixels[None], StylizeSettings(precision="float32")
                )[0]
                for own, (network, card) in networks.items()
            },
            f"optimisation, {gatys.iterations} iterations": last.picture.clamp(0, 1),
        }
        for by, picture in pictures.items():
            stem = f"{name}-{by.split(',')[0].replace(' ', '-')}"
            (output / f"{stem}.png").write_bytes(encode_png(picture))
            yield name, by, *_judged(evaluator, evaluator.represent(picture), photo)


def _judged(evaluator: Evaluator, picture: JudgedPicture, photo: JudgedPicture) -> Iterator[str]:
    scores = evaluator.scores(picture, photo)
    for ratio in (scores.style_ratio, scores.style_ratio_vgg19, scores.style_ratio_alexnet):
        yield f"{ratio:.2f}"
    for layer in LAYERS:
        yield f"{_distance(picture, evaluator.painting, layer):.2f}"
    yield f"{scores.content_loss:.1f}"
    yield f"{scores.ssim:.2f}"


def _distance(picture: JudgedPicture, painting: JudgedPicture, layer: str) -> float:
    """‖G(x) - G(s)‖ / ‖G(s)‖ with VGG19."""
    x, s = (each.judged["vgg19"][layer] for each in (picture, painting))
    return float((x - s).norm() / s.norm())


if __name__ == "__main__":
    run_main(main)
