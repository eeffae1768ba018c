"""Finds out which runtime stylises frames fastest here, among those whose outputs match PyTorch's."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from singleshot.errors import in_a_line
from singleshot.export.model_files import open_style
from singleshot.export.parity import Reference, compare, random_inputs, reference
from singleshot.export.stylizers import (
    STYLIZERS,
    StylizerName,
    StylizerParams,
    open_stylizer,
    prepare,
    unavailable,
)
from singleshot.style.apply.stylize import StylizeSettings
from singleshot.style.video.segments import Stylizer

SIDE_PX = 256
"""Side of the frame that is compared and timed, in pixels."""
ROUNDS = 3
"""Number of rounds in which the runtimes take turns, after one that doesn't count."""


@dataclass(frozen=True)
class Measured:
    """Throughput of one runtime."""

    frames_per_second: float | None
    """Throughput for frames of `SIDE_PX`, by processor time, on all threads; None if it can't be used."""
    reason: str = ""
    """Reason why the runtime can't be used."""


def measure_stylizers(
    model: Path, settings: StylizeSettings, threads: int
) -> Mapping[StylizerName, Measured]:
    """Compare each runtime with PyTorch, as the stage `benchmark` does, and time those that match.

    This takes some seconds. Settings that ask for float32 exclude bfloat16.
    """
    network = open_style(model)
    inputs = random_inputs(network.inputs, {"batch": 1, "height": SIDE_PX, "width": SIDE_PX}, seed=0)
    exact = reference(network, inputs)
    frame = torch.from_numpy(inputs["pictures"]).mul(255).round().byte()
    reasons: dict[StylizerName, str] = {}
    stylizers: dict[StylizerName, Stylizer] = {}
    for name in STYLIZERS:
        params = StylizerParams(name, SIDE_PX, SIDE_PX, settings)
        if reason := _wrong(model, params, inputs, exact):
            reasons[name] = reason
        else:
            stylizers[name] = open_stylizer(model, params, "cpu", threads)
    turns = [
        {name: _seconds(each, frame, threads) for name, each in stylizers.items()} for _ in range(1 + ROUNDS)
    ]
    left_out = {name: Measured(None, reason) for name, reason in reasons.items()}
    return left_out | {name: Measured(1 / min(turn[name] for turn in turns[1:])) for name in stylizers}


def _wrong(model: Path, params: StylizerParams, inputs: Mapping, exact: Reference) -> str | None:
    """Reason why a runtime can't be used; None if it can. PyTorch always can."""
    if params.runtime == "torch":
        return None
    if params.settings.precision == "float32" and params.runtime == "openvino-bf16":
        return "float32 is asked for"
    if reason := unavailable(params.runtime):
        return reason
    try:
        prepared = prepare(model, params, at_once=1)
        return compare(prepared.run(inputs), exact, prepared.precision).reason
    except Exception as error:  # each runtime raises its own kinds
        return in_a_line(error)


def _seconds(stylizer: Stylizer, frame: Tensor, threads: int) -> float:
    """Seconds for a frame on all threads, measured on two frames per thread.

    They are derived from processor time, because wall-clock time depends on other work on the machine.
    """
    frames = [frame] * (2 * threads)
    start = time.process_time()
    with ThreadPoolExecutor(stylizer.at_once) as pool:
        list(pool.map(stylizer.stylize, frames))
    return (time.process_time() - start) / len(frames) / threads
