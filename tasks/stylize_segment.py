"""Tasks: stylise a segment of a video, with PyTorch or with a certain runtime."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from singleshot.export.stylizers import StylizerName, StylizerParams, open_stylizer
from singleshot.style.model_file import load_model
from singleshot.style.video.segments import (
    SEGMENT,
    Stylizer,
    StylizeSegmentParams,
    torch_stylizer,
    write_segment,
)
from tasks.job import Event, Job, Metrics, Progress, per_job


@dataclass(frozen=True)
class RuntimeSegmentParams:
    """Parameters that a segment depends on, besides the video and the model."""

    segment: StylizeSegmentParams
    runtime: StylizerName


@per_job
def stylize_segment(job: Job) -> Iterator[Event]:
    """Stylise a segment of a video (:class:`StylizeSegmentParams`) with PyTorch.

    Inputs: `video`, and `model` (:func:`singleshot.style.model_file.load_model`). The output gets
    `segment.mp4` (:func:`singleshot.style.video.segments.write_segment`).

    Raises:
        UserError: the video isn't the one that the segment was planned for, or the model isn't a model file.
    """
    network = load_model(job.inputs["model"])[0].to(job.device)
    yield from _write(job, job.params, torch_stylizer(network, job.params.settings))


@per_job
def stylize_segment_by_runtime(job: Job) -> Iterator[Event]:
    """Like :func:`stylize_segment`, on a runtime (:class:`RuntimeSegmentParams`).

    Raises:
        UserError: the video isn't the one that the segment was planned for, the model is no style's model,
            or the runtime can't run here.
    """
    params: RuntimeSegmentParams = job.params
    frames = params.segment.format
    stylizer = StylizerParams(params.runtime, frames.width, frames.height, params.segment.settings)
    opened = open_stylizer(job.inputs["model"], stylizer, job.device, torch.get_num_threads())
    yield from _write(job, params.segment, opened)


def _write(job: Job, params: StylizeSegmentParams, stylizer: Stylizer) -> Iterator[Event]:
    frames, start = params.segment.frames - params.lead, time.perf_counter()
    for done in write_segment(job.inputs["video"], job.output / SEGMENT, params, stylizer):
        yield Progress(done / frames)
    yield Metrics(frames, {"frames_per_second": frames / (time.perf_counter() - start)})
