"""Effect of GraSP's and SNIP's masks on a style network: `python -m benchmarks.style_pruners`.

The default profile's pruned style at 90 % sparsity, before and after training. No norm follows the last
convolution, so nothing undoes the effect of its mask on a picture's colours: two further variants exchange
this mask between the pruners. Needs the stage pictures, and two minutes per row.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.command import check_inputs, run_main
from benchmarks.paired import heading, print_table
from pipelines.catalog.paths import BACKBONES, SAMPLES
from pipelines.catalog.styles import judges, training_inputs, training_of
from pipelines.config.params import Config, configuration
from singleshot.pruning.objective import Masks
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.evaluation.evaluator import Evaluator, PictureScores
from singleshot.style.johnson import TrainStyleParams, initial_network, open_loss
from singleshot.style.model_file import load_model
from singleshot.style.pruning.masks import StyleMask, load_mask, prunable
from singleshot.style.transformer_net import TransformerNet
from tasks.job import Job
from tasks.prune_style import MaskSettings, PruneStyleParams, make_mask
from tasks.train_style import train_style

SPARSITY = 0.9
SEEDS = (0, 1)
"""Seeds of initial weights and of the order of photos."""
LAST = "stages.22.weight"
"""The convolution that makes the picture."""
COLUMNS = (
    "seed",
    "masks",
    "weights kept",
    "last convolution's positive of kept: R, G, B",
    "mean R, G, B before training",
    "loss",
    "gradient's norm",
    "style ratio after",
    "content loss",
    "SSIM",
)


@dataclass(frozen=True)
class Bench:
    """The first style that the profile prunes, trained with one seed."""

    config: Config
    seed: int

    @property
    def training(self) -> TrainStyleParams:
        """Parameters of training, for pruned and dense networks."""
        return replace(training_of(self.config, self.config.style.pruning.styles[0]), seed=self.seed)

    @property
    def inputs(self) -> Mapping[str, Path]:
        """Files that the network is trained from."""
        return training_inputs(self.config, self.training.style)


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    check_inputs(BACKBONES, SAMPLES, stages="pictures")
    torch.set_num_threads(1)
    benches = [Bench(configuration("profile=default", "style.training.start=null"), seed) for seed in SEEDS]
    masks = [_masks(bench) for bench in benches]
    print(heading("torch"))
    rows = (
        (bench.seed, name, *_row(bench, kept))
        for bench, variants in zip(benches, masks, strict=True)
        for name, kept in variants.items()
    )
    print_table(COLUMNS, rows)


def _masks(bench: Bench) -> Mapping[str, Masks]:
    """Masks by the name that the table shows."""
    snip, grasp = (_made(bench, pruner) for pruner in ("snip", "grasp"))
    return {
        "none": {name: torch.ones_like(kept) for name, kept in snip.items()},
        "SNIP": snip,
        "GraSP": grasp,
        "GraSP, last SNIP": grasp | {LAST: snip[LAST]},
        "SNIP, last GraSP": snip | {LAST: grasp[LAST]},
    }


def _made(bench: Bench, pruner: str) -> dict[str, Tensor]:
    settings = MaskSettings(pruner, SPARSITY, bench.config.style.pruning.photos)
    return make_mask(Job(PruneStyleParams(bench.training, settings), bench.inputs, output=Path()))


def _row(bench: Bench, kept: Masks) -> Iterator[str]:
    yield f"{sum(int(own.sum()) for own in kept.values()):,}"
    with tempfile.TemporaryDirectory() as name:
        output, mask = Path(name) / "network", Path(name) / "mask.safetensors"
        output.mkdir()
        StyleMask({}, kept).save(mask)
        yield from _before_training(bench, mask)
        list(train_style([Job(bench.training, {**bench.inputs, "mask": mask}, output)]))
        network, _ = load_model(output / "model.safetensors")
    yield from judged(bench.config, bench.training.style, network)


def _before_training(bench: Bench, mask: Path) -> Iterator[str]:
    """Cells about the initial network under the mask, on the photos that masks were made with."""
    training, johnson = bench.training, bench.training.johnson
    network = initial_network(johnson.width, training.seed)
    kept = load_mask(mask)
    kept.apply(network, mask)
    last = prunable(network)[LAST]
    yield ", ".join(f"{share:.0%}" for share in (last > 0).sum((1, 2, 3)) / kept.kept[LAST].sum((1, 2, 3)))
    photos = PhotoSet.open(bench.inputs["photos"])
    number = bench.config.style.pruning.photos
    x = photos.batch(training.seed, 0, number, johnson.image_px, johnson.augment)
    y = network(x)
    yield ", ".join(f"{colour:.2f}" for colour in y.mean((0, 2, 3)))
    criterion = open_loss(bench.inputs, johnson, "cpu", torch.float32)
    loss = criterion(y, criterion.network.content(x)).total
    yield f"{loss:.0f}"
    loss.backward()
    gradients = [θ.grad for θ in network.parameters() if θ.grad is not None]
    yield f"{torch.nn.utils.get_total_norm(gradients):,.0f}"


def judged(config: Config, style: str, network: TransformerNet) -> tuple[str, str, str]:
    """Style ratio, content loss and SSIM of a network: means over photos, as in pruning.csv."""
    quality = config.style.quality
    evaluator = Evaluator(judges(style), quality.size_px, "cpu")
    samples = PhotoSet.open(SAMPLES)
    scores = []
    for name in quality.photos:
        photo = evaluator.represent(samples.read(name, short_side=quality.size_px))
        picture = stylize(network, photo.pixels[None], StylizeSettings(precision="float32"))[0]
        scores.append(evaluator.scores(evaluator.represent(picture), photo))
    means = PictureScores(*np.mean(scores, axis=0).tolist())
    return f"{means.style_ratio:.2f}", f"{means.content_loss:.1f}", f"{means.ssim:.2f}"


if __name__ == "__main__":
    run_main(main)
