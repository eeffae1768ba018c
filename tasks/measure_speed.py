"""Task: seconds per picture with both methods, the report's Table I.

Version 1 is Gatys et al.'s optimisation, Version 2 a network after Johnson et al.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, median
from typing import Annotated

import torch
from annotated_types import Ge, MinLen

from singleshot.errors import UserError
from singleshot.io.images import read_rgb
from singleshot.style.apply.stylize import StylizeSettings, stylize
from singleshot.style.backbones import BackboneName, load_backbone
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.gatys import GatysConfig, Iterate, optimize
from singleshot.style.model_file import load_model
from singleshot.style.precision import Precision, resolve
from tasks.job import Event, Job, Metrics, Progress, per_job
from tasks.tables import write_csv


@dataclass(frozen=True)
class SpeedConfig:
    """Settings of the timing, which makes the report's Table I."""

    images: Annotated[int, Ge(1)]
    """Number of photos that each version is timed on: the first of those that styles are trained on."""
    sizes_px: Annotated[tuple[Annotated[int, Ge(32)], ...], MinLen(1)]
    """Sides of the square pictures, in pixels."""
    backbones: Annotated[tuple[BackboneName, ...], MinLen(1)]
    """Backbones of Gatys et al.'s optimisation."""
    iterations: Annotated[int, Ge(1)]
    """Number of iterations with which Gatys et al.'s optimisation makes a picture."""
    measured_iterations: Annotated[int, Ge(1)]
    """Number of iterations that are run and timed; the time of the rest is extrapolated."""
    repeats: Annotated[int, Ge(1)]
    """Number of times that each photo is stylised."""


@dataclass(frozen=True)
class SpeedParams:
    """Parameters that the timing depends on, besides the input files."""

    config: SpeedConfig
    gatys: GatysConfig
    """Settings of Gatys et al.'s optimisation, except backbone, size and iterations."""
    precision: Precision = "auto"
    """Arithmetic of the trained network; that of the optimisation is in `gatys`."""


@dataclass(frozen=True)
class SpeedRow:
    """One version at one size: a row of speed.csv."""

    version: int
    backbone: str
    """Backbone of Version 1; Version 2 has none."""
    size_px: int
    device: str
    """`cpu`, or the GPU's name."""
    seconds_per_image: float
    """Mean over photos and repeats, from the photo in memory to the finished picture in memory."""
    iterations: int | None
    """Number of iterations of Version 1, all of which `seconds_per_image` includes."""
    extrapolated: bool
    """Whether fewer iterations were timed, and the rest extrapolated."""
    images: int
    """Number of photos that were timed, each in every repeat."""
    threads: int
    """Number of compute threads of the CPU."""
    precision: str
    seconds_p50: float
    cpu_seconds_per_image: float
    """Processor time of all threads, in seconds. If it is less than `seconds_per_image` on one thread,
    something else ran on that core."""


@dataclass(frozen=True)
class _Seconds:
    """Elapsed time and processor time, in seconds."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class _Case:
    """A case to be timed: one version at one size."""

    backbone: BackboneName | None
    """Backbone of Version 1; None for Version 2."""
    size_px: int


@per_job
def measure_speed(job: Job) -> Iterator[Event]:
    """Time a job's versions and sizes (:class:`SpeedParams`). Nothing else should run meanwhile.

    Inputs: `photos` (directory of a :class:`PhotoSet`) and `painting`; for Version 1, the
    `normalized.safetensors` of each backbone, under the backbone's name; for Version 2, `model`. The output
    gets `speed.csv` (:class:`SpeedRow`). Metrics have the size as their step.

    Pictures are squares cut from the middle of the photos, as in the report. A photo that is smaller than the
    square is scaled up; it takes as long to stylise as any other picture. Version 2 stylises one picture at a
    time.

    A run of Version 1 begins with the features of photo and painting and with a first evaluation. Then
    come `iterations` more evaluations, of which only `measured_iterations` are run:

        seconds per image = first + iterations · seconds of the measured ones / measured iterations

    All cases take turns photo by photo, so that a machine that slows down slows all of them. Before that,
    they have a warm-up turn that doesn't count. Version 1 has it at the smallest size only, since the first
    evaluation warms up the others.

    Raises:
        UserError: an input is damaged, or Version 1 can't make its first step.
    """
    params: SpeedParams = job.params
    bench = _Bench(job)
    cases = [
        _Case(backbone, size_px)
        for size_px in params.config.sizes_px
        for backbone in (None, *params.config.backbones)
    ]
    warm_up = [c for c in cases if c.backbone is None or c.size_px == min(params.config.sizes_px)]
    for case in warm_up:
        bench.time(case, photo=0)
    samples: dict[_Case, list[_Seconds]] = {case: [] for case in cases}
    turns = list(product(range(params.config.repeats), range(params.config.images), cases))
    for n, (_, photo, case) in enumerate(turns, start=1):
        samples[case].append(bench.time(case, photo))
        yield Progress(n / len(turns))
    rows = [bench.row(case, seconds) for case, seconds in samples.items()]
    write_csv(job.output / "speed.csv", SpeedRow, rows)
    for size_px in params.config.sizes_px:
        yield Metrics(size_px, _metrics([row for row in rows if row.size_px == size_px]))


class _Bench:
    """The networks and pictures of a job, and the functions that time them."""

    def __init__(self, job: Job) -> None:
        self.device, self.params = torch.device(job.device), job.params
        self.photos = PhotoSet.open(job.inputs["photos"])
        if len(self.photos) < self.params.config.images:
            raise UserError(
                f"{job.inputs['photos']}: has {len(self.photos)} photos, fewer than the "
                f"{self.params.config.images} to time; lower speed.images"
            )
        self.paintings = {
            size_px: read_rgb(job.inputs["painting"], short_side=size_px).to(self.device)
            for size_px in self.params.config.sizes_px
        }
        self.network = load_model(job.inputs["model"])[0].to(self.device)
        self.backbones = {
            name: load_backbone(job.inputs[name], pooling="average").to(self.device)
            for name in self.params.config.backbones
        }

    def time(self, case: _Case, photo: int) -> _Seconds:
        """Seconds for the picture of photo number `photo`."""
        square = self.photos.crop(photo, case.size_px, torch.Generator(), augment=False).to(self.device)
        if case.backbone is None:
            settings = StylizeSettings(precision=self.params.precision)
            return self._clock(lambda: stylize(self.network, square[None], settings))
        config = replace(
            self.params.gatys,
            backbone=case.backbone,
            size_px=case.size_px,
            iterations=self._measured_iterations,
        )
        painting, backbone = self.paintings[case.size_px], self.backbones[case.backbone]
        iterates = optimize(square, painting, backbone, config)
        first = self._clock(lambda: next(iterates))
        # Only the last iterate is kept: each holds the picture and more, and there may be hundreds.
        last: deque[Iterate] = deque(maxlen=1)
        rest = self._clock(lambda: last.extend(iterates))
        if not last:
            raise UserError(
                f"{self.photos.names[photo]}: Version 1 with {case.backbone} at {case.size_px} px finds no "
                "lower loss than its first picture's, so there is nothing to time; change its settings or "
                "the photo"
            )
        factor = self.params.config.iterations / last[0].iteration
        return _Seconds(first.wall + factor * rest.wall, first.cpu + factor * rest.cpu)

    @property
    def _measured_iterations(self) -> int:
        return min(self.params.config.measured_iterations, self.params.config.iterations)

    def _clock(self, work: Callable[[], object]) -> _Seconds:
        self._synchronize()
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        self._synchronize()
        return _Seconds(time.perf_counter() - wall, time.process_time() - cpu)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def row(self, case: _Case, samples: Sequence[_Seconds]) -> SpeedRow:
        version_1 = case.backbone is not None
        params: SpeedParams = self.params
        precision = params.gatys.precision if version_1 else params.precision
        dtype = resolve(precision, str(self.device))
        return SpeedRow(
            version=1 if version_1 else 2,
            backbone=case.backbone or "",
            size_px=case.size_px,
            device=torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            seconds_per_image=fmean(sample.wall for sample in samples),
            iterations=params.config.iterations if version_1 else None,
            extrapolated=version_1 and self._measured_iterations < params.config.iterations,
            images=params.config.images,
            threads=torch.get_num_threads(),
            precision=str(dtype).removeprefix("torch."),
            seconds_p50=median(sample.wall for sample in samples),
            cpu_seconds_per_image=fmean(sample.cpu for sample in samples),
        )


def _metrics(rows: Sequence[SpeedRow]) -> dict[str, float]:
    """Seconds for each version, and the speed of Version 2 relative to Version 1, from rows of one size."""
    (version_2,) = (row.seconds_per_image for row in rows if row.version == 2)
    version_1 = {row.backbone: row.seconds_per_image for row in rows if row.version == 1}
    return (
        {"seconds_version_2": version_2}
        | {f"seconds_{backbone}": seconds for backbone, seconds in version_1.items()}
        | {f"speedup_{backbone}": seconds / version_2 for backbone, seconds in version_1.items()}
    )
