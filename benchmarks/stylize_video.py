"""Frames per second of `stylize` and of pytorch/examples' network: `python -m benchmarks.stylize_video`.

The baseline is the network of pytorch/examples' fast_neural_style with the same width, in eager PyTorch:
float32, on all cores, one frame at a time, from a tensor to a tensor. `stylize` turns a video file into
another: it probes, decodes, stylises, encodes and joins. Both have random weights, which take as long as
trained weights.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from itertools import count
from pathlib import Path

import av
import joblib
import torch
from skimage.data import astronaut
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.command import positive, run_main
from benchmarks.paired import heading, print_table, take_turns
from pipelines.engine.run import keep_freed_memory
from singleshot.command.stylize import StylizeOptions, stylize_inputs
from singleshot.errors import UserError
from singleshot.export.stylizers import STYLIZERS, open_stylizer
from singleshot.io.h264 import VideoFormat, add_h264, address, encode
from singleshot.io.images import Frame
from singleshot.style.apply.stylize import StylizeSettings
from singleshot.style.model_file import ModelCard, save_model
from singleshot.style.transformer_net import TransformerNet
from singleshot.style.video.smoothing import smooth

SIDE_PX = 640
BASELINE = "examples"


def main() -> None:
    """Print a Markdown table for each width."""
    arguments = _arguments()
    cores = joblib.cpu_count()
    torch.set_num_threads(cores)
    keep_freed_memory()  # as where `stylize` computes
    print(heading("torch", "openvino", "onnxruntime", "av", threads=cores))
    instructions = torch.backends.cpu.get_cpu_capability()
    print(f"{arguments.frames} frames of {SIDE_PX}x{SIDE_PX}; PyTorch computes with {instructions}.")
    print(f"Smoothing alone takes {1000 * _smoothing(arguments.frames):.0f} ms of a core a frame.")
    for width in arguments.width:
        with tempfile.TemporaryDirectory() as directory:
            _compare(width, arguments.frames, arguments.rounds, Path(directory))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--width", nargs="+", type=positive(int), default=[16, 32], help="channels")
    parser.add_argument("--frames", type=positive(int), default=60)
    parser.add_argument("--rounds", type=positive(int), default=3)
    return parser.parse_args()


def _compare(width: int, frames: int, rounds: int, directory: Path) -> None:
    video, model = directory / "film.mp4", directory / "model.safetensors"
    _write_video(video, frames)
    save_model(TransformerNet(width), ModelCard("random", "", "", 0, {}, {}, ""), model)
    runs: dict[str, Callable[[], object]] = {BASELINE: partial(_run_examples, _examples(width), frames)}
    outputs = (directory / f"{number}" for number in count())
    for runtime in STYLIZERS:
        try:
            open_stylizer(model, runtime, SIDE_PX, SIDE_PX, StylizeSettings(), "cpu", 1)
        except UserError as error:
            print(f"\n{error}")
            continue
        options = StylizeOptions(StylizeSettings(), 1, force=False, runtime=runtime)
        runs[runtime] = partial(_run_stylize, model, video, outputs, options)
    found = take_turns(runs, rounds, busy=0)
    print(f"\nWidth {width}. Medians of {rounds} rounds (smallest to largest).\n")
    rows = []
    for name in runs:
        seconds = found.seconds(name)
        speeds = f"{frames / seconds.wall:.2f}", f"{seconds.cpu / frames:.3f}"
        rows.append((name, *speeds, found.speedup(name, BASELINE), found.speedup(name, BASELINE, of="cpu")))
    print_table(("by", "frames/s", "CPU s a frame", "times the baseline", "… by CPU time"), rows)


def _smoothing(frames: int) -> float:
    """Core-seconds that smoothing takes per frame."""
    pixels = list(_moving_photo(frames))
    began = time.process_time()
    for _ in smooth(pixels, pixels):
        pass
    return (time.process_time() - began) / frames


def _run_stylize(model: Path, video: Path, outputs: Iterator[Path], options: StylizeOptions) -> None:
    with redirect_stdout(StringIO()):
        stylize_inputs({str(model): 1.0}, [str(video)], next(outputs), options)


@torch.inference_mode()
def _run_examples(network: nn.Module, frames: int) -> None:
    frame = torch.rand(1, 3, SIDE_PX, SIDE_PX)
    for _ in range(frames):
        network(frame)


def _write_video(path: Path, frames: int) -> None:
    with av.open(address(path), "w") as container:
        stream = add_h264(container, VideoFormat(SIDE_PX, SIDE_PX, "30"))
        for packet in encode(stream, _moving_photo(frames)):
            container.mux(packet)


def _moving_photo(frames: int) -> Iterator[Frame]:
    photo = torch.from_numpy(astronaut().copy()).permute(2, 0, 1)[None].float()  # type: ignore[no-untyped-call]
    pixels = functional.interpolate(photo, (SIDE_PX, SIDE_PX), mode="bilinear").byte()[0].permute(1, 2, 0)
    for i in range(frames):
        yield pixels.roll(4 * i, dims=1).numpy()


def _examples(width: int) -> nn.Module:
    """The layers of pytorch/examples' `TransformerNet`, whose width is 32."""
    stages: list[nn.Module] = []
    for inputs, outputs, kernel, stride in (
        (3, width, 9, 1),
        (width, 2 * width, 3, 2),
        (2 * width, 4 * width, 3, 2),
    ):
        stages += _block(inputs, outputs, kernel, stride)
    stages += [_Residual(4 * width) for _ in range(5)]
    for inputs, outputs in ((4 * width, 2 * width), (2 * width, width)):
        stages += [nn.Upsample(scale_factor=2, mode="nearest"), *_block(inputs, outputs, 3)]
    return nn.Sequential(*stages, *_block(width, 3, 9)[:2]).eval()


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_block(channels, channels, 3), *_block(channels, channels, 3)[:3])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def _block(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [
        nn.ReflectionPad2d(kernel // 2),
        nn.Conv2d(inputs, outputs, kernel, stride),
        nn.InstanceNorm2d(outputs, affine=True),
        nn.ReLU(),
    ]


if __name__ == "__main__":
    run_main(main)
