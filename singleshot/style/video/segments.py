"""Stylising a video by segments."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, pairwise, tee
from pathlib import Path

import av
import cv2
import numpy as np
import torch
from torch import Tensor

from singleshot.io.h264 import VideoFormat, add_h264, address, encode
from singleshot.io.images import Frame
from singleshot.style.apply.light import bounded
from singleshot.style.apply.regions import find_faces, within
from singleshot.style.apply.stylize import FULL_STYLE, StylizeSettings, stylize
from singleshot.style.transformer_net import TransformerNet
from singleshot.style.video.reader import Segment, VideoInfo, read_segment
from singleshot.style.video.smoothing import HISTORY, LEAD, smooth

SEGMENT = "segment.mp4"


@dataclass(frozen=True)
class StylizeSegmentParams:
    """Parameters that a stylised segment depends on, besides the video and the model."""

    segment: Segment
    """The frames to read."""
    format: VideoFormat
    """Format of the whole video, so that all segments are encoded alike."""
    settings: StylizeSettings = FULL_STYLE
    batch_size: int = 4
    """Number of frames to stylise at once."""
    lead: int = 0
    """Number of frames at the start that are read only for the smoothing, and not written."""


def plan_segments(info: VideoInfo, frames_per_segment: int) -> list[Segment]:
    """Segments of nearly equal length, up to `frames_per_segment`, that make up the whole video."""
    segments = -(-info.frames // frames_per_segment)
    bounds = [i * info.frames // segments for i in range(segments + 1)]
    return [info.segment(start, stop) for start, stop in pairwise(bounds)]


def with_lead(info: VideoInfo, segment: Segment) -> tuple[Segment, int]:
    """A segment with the frames before it that its smoothing needs, and their number."""
    lead = min(LEAD, segment.start)
    return info.segment(segment.start - lead, segment.start + segment.frames), lead


@dataclass(frozen=True)
class Stylizer:
    """A function that stylises frames, and how often it may be called at once."""

    stylize: Callable[[Tensor], Tensor]
    """Function from frames (N, 3, H, W), uint8, to their stylised versions, of the same shape and type."""
    at_once: int = 1
    """Number of calls that may run at once, each in its own thread."""


def torch_stylizer(network: TransformerNet, settings: StylizeSettings) -> Stylizer:
    """A stylizer with PyTorch, which computes one call on all its threads."""
    return Stylizer(lambda frames: stylize(network, frames, settings))


def write_segment(
    video: Path, output: Path, params: StylizeSegmentParams, stylizer: Stylizer
) -> Iterator[int]:
    """Write a segment of `video`, stylised, to `output` as H.264; yield the number of frames written so far.

    Frames (:func:`stylized_film`) have the video's mean rate, without sound.
    :func:`~singleshot.style.video.join.join_segments` sets their times.

    Raises:
        UserError: the video isn't the one that the segment was planned for.
    """
    cv2.setNumThreads(1)  # smoothing leaves the other cores to the network
    originals = read_segment(video, params.segment)
    film = stylized_film(originals, stylizer, params.settings, params.batch_size)
    with closing(film), av.open(address(output), "w") as container:
        stream = add_h264(container, params.format)
        for done, packet in enumerate(encode(stream, islice(film, params.lead, None)), start=1):
            container.mux(packet)
            yield done


def stylized_film(
    originals: Iterable[Frame], stylizer: Stylizer, settings: StylizeSettings, batch_size: int
) -> Generator[Frame, None, None]:
    """Yield a film's frames in a style, steady along its motion and within the bounds of its own light."""
    originals, guides, lights = tee(originals, 3)
    with closing(_stylized(originals, batch_size, stylizer)) as stylized:
        # A weaker style flickers less, so it is smoothed less; at strength 0, the original stays unchanged.
        for light, frame in zip(lights, smooth(guides, stylized, HISTORY * settings.strength), strict=True):
            faces = find_faces(light) if settings.keep_faces else []
            yield within(light, bounded(light, frame), settings.mask, faces)


def _stylized(frames: Iterator[Frame], batch_size: int, stylizer: Stylizer) -> Generator[Frame, None, None]:
    """Yield stylised frames in order. Meanwhile, earlier frames are encoded and later ones decoded."""

    def stylize_batch(batch: Sequence[Frame]) -> Iterable[Frame]:
        pictures = torch.from_numpy(np.stack(batch)).permute(0, 3, 1, 2)
        return stylizer.stylize(pictures).permute(0, 2, 3, 1).numpy()

    waiting: deque[Future[Iterable[Frame]]] = deque()
    with ThreadPoolExecutor(stylizer.at_once) as pool:
        while batch := list(islice(frames, batch_size)):
            waiting.append(pool.submit(stylize_batch, batch))
            if len(waiting) > stylizer.at_once:
                yield from waiting.popleft().result()
        for stylized in waiting:
            yield from stylized.result()
