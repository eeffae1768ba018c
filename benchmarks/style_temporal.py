"""Effect of smoothing and temporal loss on flicker and on style: `python -m benchmarks.style_temporal`.

The default profile's styles are each trained with several weights of the temporal loss. Their frames are
measured as they are, and smoothed along the video's motion as `stylize` does it. Needs the stages
fetch_images, fetch_weights and make_clip, and three minutes per row.

Sharp strokes have a warping error even if they move exactly as the scene does, because frames are sampled and
warping interpolates. The column "rigid" shows this part: the error of a photo that is stylised once, with the
clip's camera moving over it.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time

import torch

from benchmarks.command import check_inputs, run_main
from benchmarks.paired import heading, print_table
from benchmarks.style_pruners import judged
from pipelines.catalog.paths import BACKBONES, SAMPLES
from pipelines.catalog.styles import judges, training_inputs, training_of, video_of
from pipelines.config.params import Config, configuration
from singleshot.io.images import Frame
from singleshot.style.apply.stylize import stylize
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.evaluation.evaluator import Evaluator, JudgedPicture
from singleshot.style.evaluation.warping_error import warping_error
from singleshot.style.johnson import TrainStyleParams
from singleshot.style.model_file import load_model
from singleshot.style.transformer_net import TransformerNet
from singleshot.style.video.reader import probe, read_frames
from singleshot.style.video.smoothing import smooth
from tasks.job import Job
from tasks.make_clip import ZOOM, pan_and_zoom
from tasks.train_style import train_style

WEIGHTS = (0.0, 300.0, 1000.0, 2000.0)
COLUMNS = (
    "style",
    "temporal weight",
    "CPU s",
    "warping error, to the original's",
    "smoothed",
    "rigid",
    "style ratio of frames, AlexNet",
    "smoothed",
    "style ratio of photos",
    "content loss",
    "SSIM",
)


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--weights", type=float, nargs="+", default=WEIGHTS, help="of the temporal loss")
    options = parser.parse_args()
    config = configuration("profile=default")
    check_inputs(BACKBONES, SAMPLES, video_of(config), stages="pictures")
    torch.set_num_threads(1)
    print(heading("torch"))
    print_table(COLUMNS, _rows(config, options.weights))


def _rows(config: Config, weights: Sequence[float]) -> Iterator[tuple[object, ...]]:
    for style in config.style.training.styles:
        default = training_of(config, style)
        for weight in weights:
            johnson = replace(default.johnson, temporal_weight=weight)
            yield style, f"{weight:g}", *_row(config, replace(default, johnson=johnson))


def _row(config: Config, training: TrainStyleParams) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as name:
        output, began = Path(name), process_time()
        list(train_style([Job(training, training_inputs(config, training.style), output)]))
        yield f"{process_time() - began:.0f}"
        network, _ = load_model(output / "model.safetensors")
    original = list(read_frames(video_of(config)))
    stylized = [_stylized(network, frame) for frame in original]
    smoothed = list(smooth(original, stylized))
    for frames in (stylized, smoothed, _rigid_frames(config, network)):
        yield f"{warping_error(original, frames).relative:.2f}"
    evaluator = Evaluator(judges(training.style), config.style.clip.height, "cpu")
    for frames in (stylized, smoothed):
        yield f"{_style_ratio(evaluator, frames, original):.2f}"
    yield from judged(config, training.style, network)


def _rigid_frames(config: Config, network: TransformerNet) -> Iterator[Frame]:
    """The clip's photo, stylised once in the size that it has in the last frame, with the clip's motion."""
    clip = config.style.clip
    photo = PhotoSet.open(SAMPLES).read(clip.photo, short_side=round(ZOOM * clip.height))
    (picture,) = stylize(network, photo[None])
    frames = probe(video_of(config)).frames
    yield from pan_and_zoom(picture, frames, (clip.width, clip.height))


def _stylized(network: TransformerNet, frame: Frame) -> Frame:
    (picture,) = stylize(network, torch.from_numpy(frame).permute(2, 0, 1)[None])
    return picture.permute(1, 2, 0).contiguous().numpy()


def _style_ratio(evaluator: Evaluator, frames: Sequence[Frame], original: Sequence[Frame]) -> float:
    """Mean style ratio over some of the frames, by AlexNet, with which no network was trained."""

    def represented(frame: Frame) -> JudgedPicture:
        return evaluator.represent(torch.from_numpy(frame).permute(2, 0, 1) / 255)

    pairs = zip(frames[9::10], original[9::10], strict=True)
    ratios = [evaluator.scores(represented(x), represented(i)).style_ratio_alexnet for x, i in pairs]
    return sum(ratios) / len(ratios)


if __name__ == "__main__":
    run_main(main)
