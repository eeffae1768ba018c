"""Photos in the styles that `learn-style` has learned: `python -m benchmarks.learned_sheet NAME…`.

Draws a contact sheet with a row for each style: its painting, and photos that no training saw.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.command import run_main
from benchmarks.learned_style import learned
from benchmarks.paired import heading, print_table
from pipelines.cli.learn_style import WORK
from pipelines.config.params import configuration
from singleshot.io.images import encode_jpeg, middle, read_rgb
from singleshot.style.contact_sheet import contact_sheet
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.model_file import ModelCard
from singleshot.style.style import Style

SIDE_PX, QUALITY = 224, 75
COLUMNS = ("style", "batches", "distance to the painting that is left, by AlexNet")


def main() -> None:
    """Write the sheet, and print a Markdown table of what each style's card says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="name", help="names of styles, as given to learn-style")
    parser.add_argument("--output", type=Path, default=Path("docs/learned_styles.jpg"))
    options = parser.parse_args()
    styles = {name: Style.load(learned(name)[1]) for name in options.names}
    rows = [_pictures(name, style) for name, style in styles.items()]
    captions = [text for name in styles for text in (name, *[""] * (len(rows[0]) - 1))]
    sheet = contact_sheet([picture for row in rows for picture in row], captions, columns=len(rows[0]))
    options.output.write_bytes(encode_jpeg(sheet, QUALITY))
    print(heading("torch"))
    print_table(COLUMNS, (_figures(name, style.card) for name, style in styles.items()))


def _figures(name: str, card: ModelCard) -> tuple[str, ...]:
    return name, f"{card.steps:,}", f"{card.scores['style_ratio_alexnet']:.2f}"


def _pictures(name: str, style: Style) -> list[Tensor]:
    """The painting, and the photos in its style: squares (3, H, W) in [0, 1]."""
    samples = PhotoSet.open(WORK / name / "samples")
    pictures = [read_rgb(learned(name)[0], short_side=SIDE_PX)]
    for photo in configuration("profile=default").style.quality.photos:
        pixels = (samples.read(photo, short_side=SIDE_PX) * 255).round().byte().permute(1, 2, 0).numpy()
        pictures.append(torch.from_numpy(style(pixels)).permute(2, 0, 1) / 255)
    return [middle(picture, SIDE_PX) for picture in pictures]


if __name__ == "__main__":
    run_main(main)
