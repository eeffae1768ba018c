"""Task: stylise a segment of a video with a certain runtime."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tasks.deployment.stylizers import StylizerName, StylizerParams, open_stylizer
from tasks.job import Event, Job, per_job
from tasks.style.video.segments import StylizeSegmentParams, write_segment


@dataclass(frozen=True)
class RuntimeSegmentParams:
    """Parameters that a segment depends on, besides the video and the model."""

    segment: StylizeSegmentParams
    runtime: StylizerName


@per_job
def stylize_segment_by_runtime(job: Job) -> Iterator[Event]:
    """Like :func:`tasks.style.video.segments.stylize_segment`, on a runtime (:class:`RuntimeSegmentParams`).

    Raises:
        UserError: the video isn't the one that the segment was planned for, the model is no style's model,
            or the runtime can't run here.
    """
    params: RuntimeSegmentParams = job.params
    frames = params.segment.format
    stylizer = StylizerParams(params.runtime, frames.width, frames.height, params.segment.settings)
    opened = open_stylizer(job.inputs["model"], stylizer, job.device, torch.get_num_threads())
    yield from write_segment(job, params.segment, opened)
