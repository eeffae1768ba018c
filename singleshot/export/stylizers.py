"""Runs a style's network on frames of one size with one of the runtimes."""

import tempfile
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from singleshot.errors import UserError, in_a_line
from singleshot.export.runtimes import RUNTIMES, installed_version, open_runtime
from singleshot.export.runtimes.protocol import ModelFiles
from singleshot.style.apply.strokes import small_size, with_strokes
from singleshot.style.apply.stylize import StylizeSettings, finished, fits_whole
from singleshot.style.model_file import load_model
from singleshot.style.precision import resolve
from singleshot.style.video.segments import Stylizer, torch_stylizer

StylizerName = Literal["torch", "openvino-f32", "openvino-bf16", "onnxruntime"]
STYLIZERS: tuple[StylizerName, ...] = get_args(StylizerName)
"""Runtimes that stylise frames. `torch` works on every machine, in tiles, and on a GPU."""


def open_stylizer(
    model: Path,
    runtime: StylizerName,
    width: int,
    height: int,
    settings: StylizeSettings,
    device: str,
    threads: int,
) -> Stylizer:
    """Open the network in the file `model` with a runtime, for frames of `width` x `height` pixels.

    A runtime other than `torch` computes as many frames at once as `threads` and memory allow, each on one
    thread. So the number of threads doesn't change a byte of the result, and no thread waits for another.

    Raises:
        UserError: the runtime can't run here, or the file isn't a style's model.
    """
    network, _ = load_model(model)
    if runtime == "torch":
        return torch_stylizer(network.to(device), settings)
    import onnx  # which the extra `style` lacks

    from singleshot.export.style_graph import PICTURES, STYLISED, style_graph

    height, width = small_size(height, width, settings.stroke)
    at_once = threads
    while at_once > 1 and not fits_whole(at_once, width, height, network.width):
        at_once -= 1
    try:
        if reason := unavailable(runtime):
            raise RuntimeError(reason)
        with tempfile.TemporaryDirectory(prefix="singleshot-") as directory:
            path = Path(directory, "style.onnx")
            onnx.save(style_graph(network, height, width), path)
            # OpenVINO's threads are for all streams together, onnxruntime's for each call.
            each = at_once if runtime.startswith("openvino") else 1
            shapes = {PICTURES: (1, 3, height, width)}
            adapter = open_runtime(runtime, streams=at_once)
            prepared = adapter.prepare(ModelFiles(path, model, "dense"), shapes, each)
    except RuntimeError as error:  # from both runtimes; also from the OpenVINO adapter for another precision
        reason = " ".join(str(error).split())
        raise UserError(f"--runtime {runtime}: {reason}; choose another, torch works anywhere") from error

    def stylize_frames(frames: Tensor) -> Tensor:
        return torch.cat([stylize_frame(frame) for frame in frames.contiguous().split(1)])

    def draw(picture: Tensor) -> Tensor:
        return torch.from_numpy(prepared.run({PICTURES: picture.numpy()})[STYLISED])

    def stylize_frame(frame: Tensor) -> Tensor:
        return finished(frame, with_strokes(frame, settings.stroke, draw), settings)

    return Stylizer(stylize_frames, at_once)


def fixed_runtime(settings: StylizeSettings) -> StylizerName:
    """The runtime for films on a CPU: the first installed one of OpenVINO, onnxruntime and PyTorch."""
    in_bfloat16 = resolve(settings.precision, "cpu") == torch.bfloat16
    wanted: list[StylizerName] = ["openvino-bf16" if in_bfloat16 else "openvino-f32", "onnxruntime"]
    return next((name for name in wanted if not unavailable(name)), "torch")


def unavailable(runtime: StylizerName) -> str | None:
    """Why a runtime can't run here, in words; None if it can."""
    if installed_version(runtime) is None:
        return f"{RUNTIMES[runtime].packages[0]} is not installed"
    try:
        return None if runtime == "torch" else open_runtime(runtime).unavailable()
    except ImportError as error:  # e.g. installed for another system
        return in_a_line(error)
