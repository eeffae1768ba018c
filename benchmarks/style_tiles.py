"""Time and memory of a style network, whole or in tiles: `python -m benchmarks.style_tiles`.

Each measurement runs in a process of its own, so that its peak memory can be read: resident memory beyond
that before the network runs, when the picture and the result are already allocated. CPU seconds stand beside
wall seconds; a wall time well above CPU time per thread means that the machine was busy with other things.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import product
from typing import get_args

import psutil
import torch

from benchmarks.command import positive, run_main
from benchmarks.paired import heading
from singleshot.style.apply.stylize import CPU_TILE_PX
from singleshot.style.apply.tiling import Tile, stylized_bands
from singleshot.style.precision import Precision, autocast, channels_last, resolve
from singleshot.style.transformer_net import TransformerNet

SIZES = ((1024, 1024), (3840, 2160))
WIDTHS = (16, 32)
WAYS = ("whole", "tiles")


@dataclass(frozen=True)
class Measurement:
    """Measurements of one picture."""

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int


def main() -> None:
    """Print a Markdown table, with what it was measured on; or make one measurement for the parent."""
    arguments = _arguments()
    if arguments.only:
        print(json.dumps(asdict(_measure(*json.loads(arguments.only)))))
        return
    print(heading("torch"))
    print(f"Tiles of {CPU_TILE_PX} px.\n")
    print(
        "| picture | width | precision | threads | way | seconds | CPU seconds | peak MB | bytes/(px·width) |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for size, width, precision, threads in product(SIZES, WIDTHS, arguments.precision, arguments.threads):
        for way in WAYS:
            found = _measure_apart(size, width, precision, threads, way)
            relative = found.peak_bytes / (size[0] * size[1] * width)
            settings = f"{size[0]}x{size[1]} | {width} | {precision} | {threads} | {way}"
            seconds = f"{found.wall_seconds:.1f} | {found.cpu_seconds:.1f}"
            print(f"| {settings} | {seconds} | {found.peak_bytes / 1e6:.0f} | {relative:.1f} |", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    precisions = [name for name in get_args(Precision) if name != "auto"]
    parser.add_argument("--precision", nargs="+", choices=precisions, default=precisions)
    parser.add_argument("--threads", nargs="+", type=positive(int), default=[1, 2])
    parser.add_argument("--only", help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure_apart(size: tuple[int, int], width: int, precision: str, threads: int, way: str) -> Measurement:
    only = json.dumps((size, width, precision, threads, way))
    command = [sys.executable, "-m", "benchmarks.style_tiles", "--only", only]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    return Measurement(**json.loads(done.stdout))


def _measure(size: tuple[int, int], width: int, precision: Precision, threads: int, way: str) -> Measurement:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network = channels_last(TransformerNet(width).eval())
    picture = torch.rand(1, 3, size[1], size[0])
    result = torch.zeros_like(picture)
    with torch.inference_mode(), autocast("cpu", resolve(precision, "cpu")):
        network(picture[:, :, :64, :64])  # load what is loaded only once
        before = psutil.Process().memory_info().rss
        wall, cpu = time.perf_counter(), time.process_time()
        if way == "whole":
            result[:] = network(picture.contiguous(memory_format=torch.channels_last))
        else:
            for top, band in stylized_bands(network, picture, Tile(CPU_TILE_PX // size[0])):
                result[:, :, top : top + band.shape[2]] = band
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Measurement(wall, cpu, peak - before)


if __name__ == "__main__":
    run_main(main)
