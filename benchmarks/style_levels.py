"""Style, light and colour of networks of one painting: `python -m benchmarks.style_levels`.

Each network stylises the photos in a folder, which should be ones that it was not trained on. VGG19 and
AlexNet, by which style ratios are measured, trained no network. The colours' distance is the mean difference
of their quantiles along random directions in RGB, others than those of training. Needs the stage pictures.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.command import check_inputs, positive, run_main
from benchmarks.paired import heading, print_table
from pipelines.catalog.paths import BACKBONES
from pipelines.catalog.styles import judges
from singleshot.errors import UserError
from singleshot.io.images import read_rgb
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.evaluation.evaluator import Evaluator, PictureScores
from singleshot.style.model_file import load_model

COLUMNS = ("model", *PictureScores._fields, "colours' distance", "the photos' own")
DIRECTIONS, QUANTILES = 24, 256


def main() -> None:
    """Print a Markdown table with a row for each network: means over the photos."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("painting", type=Path)
    parser.add_argument("photos", type=Path, help="folder of photos that no network was trained on")
    parser.add_argument("models", type=Path, nargs="+", metavar="model", help="model files of that painting")
    parser.add_argument("--size", type=positive(int), default=256, help="short side in pixels")
    options = parser.parse_args()
    check_inputs(BACKBONES, stages="pictures")
    files = sorted(path for path in options.photos.glob("*") if path.is_file())
    if not files:
        raise UserError(f"{options.photos}: has no photos; name a folder of some")
    evaluator = Evaluator({**judges("swirls"), "painting": options.painting}, options.size, "cpu")
    photos = [read_rgb(file, short_side=options.size) for file in files]
    print(heading("torch"))
    print_table(COLUMNS, _rows(options.models, photos, evaluator))


def _rows(models: list[Path], photos: list[Tensor], evaluator: Evaluator) -> Iterator[tuple[str, ...]]:
    painting = evaluator.painting.pixels
    for model in models:
        network, _ = load_model(model)
        scores = []
        for pixels in photos:
            result = stylize(network, pixels[None], StylizeSettings(precision="float32"))[0]
            judged = evaluator.scores(evaluator.represent(result), evaluator.represent(pixels))
            scores.append([*judged, *(colour_distance(x, painting) for x in (result, pixels))])
        yield str(model), *(f"{value:.3g}" for value in torch.tensor(scores).mean(dim=0).tolist())


def colour_distance(picture: Tensor, painting: Tensor) -> float:
    """Mean difference of quantiles of colours (3, H, W), along random directions, in levels of 256."""
    generator = torch.Generator().manual_seed(0)
    u = torch.nn.functional.normalize(torch.randn(DIRECTIONS, 3, generator=generator), dim=1)
    q = torch.linspace(0, 1, QUANTILES)
    a, b = (torch.quantile(u @ x.flatten(1), q, dim=1) for x in (picture, painting))
    return 255 * float((a - b).abs().mean())


if __name__ == "__main__":
    run_main(main)
