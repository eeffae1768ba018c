"""Stylising a video by segments: the task for each of them, and the join that restores times and sound."""

import logging
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise, tee
from pathlib import Path

import av
import cv2
import numpy as np
import torch
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.stream import Stream
from av.video.stream import VideoStream
from torch import Tensor

from singleshot.errors import UserError
from singleshot.io.h264 import VideoFormat, add_h264, encode, mux
from singleshot.io.images import Frame
from singleshot.io.whole_file import whole_file
from singleshot.style.apply.stylize import FULL_STYLE, StylizeSettings, stylize
from singleshot.style.transformer_net import TransformerNet
from singleshot.style.video.reader import Segment, VideoInfo, demux, open_video, origin, read_segment
from singleshot.style.video.smoothing import HISTORY, LEAD, smooth

logger = logging.getLogger(__name__)

SEGMENT = "segment.mp4"

MUXERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}
"""Muxers of files that can hold H.264, by suffix."""


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
    """Number of calls that may run at once, each in a thread of its own."""


def torch_stylizer(network: TransformerNet, settings: StylizeSettings) -> Stylizer:
    """A stylizer with PyTorch, which computes one call on all its threads."""
    return Stylizer(lambda frames: stylize(network, frames, settings))


def write_segment(
    video: Path, output: Path, params: StylizeSegmentParams, stylizer: Stylizer
) -> Iterator[int]:
    """Write a segment of `video`, stylised, to `output` as H.264; yield the number of frames written so far.

    Frames are smoothed along the video's motion (:func:`~singleshot.style.video.smoothing.smooth`) and have
    its mean rate, without sound. :func:`join_segments` sets their times.

    Raises:
        UserError: the video isn't the one that the segment was planned for.
    """
    cv2.setNumThreads(1)  # smoothing leaves the other cores to the network
    originals, guides = tee(read_segment(video, params.segment))
    stylized = _stylized(originals, params.batch_size, stylizer)
    # A weaker style flickers less, so it is smoothed less; at strength 0, the original comes out unchanged.
    smoothed = smooth(guides, stylized, HISTORY * params.settings.strength)
    with closing(stylized), av.open(output, "w") as container:
        stream = add_h264(container, params.format)
        for done, packet in enumerate(encode(stream, islice(smoothed, params.lead, None)), start=1):
            container.mux(packet)
            yield done


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


def join_segments(segments: Sequence[Path], source: Path, info: VideoInfo, output: Path) -> None:
    """Write a video with the frames of `segments`, and the times and sound of `source` (described by `info`).

    Each frame appears when its original does. All of the source's sound is copied, without encoding it again,
    and keeps its position relative to the frames. Tracks of unknown codecs are left out, with a warning.
    `output` is replaced once the video is whole.

    Raises:
        UserError: the segments aren't this video's, a file of `output`'s suffix can't hold H.264 or this
            sound, or it can't be written.
    """
    if output.suffix.lower() not in MUXERS:
        raise UserError(f"{output}: can't hold H.264; choose a name that ends in {', '.join(MUXERS)}")
    with (
        _told_in_a_line(output),
        open_video(source) as (original, _),
        open_video(segments[0]) as (_, template),
        whole_file(output) as file,
        av.open(file, "w", format=MUXERS[output.suffix.lower()]) as container,
    ):
        video = container.add_stream_from_template(template)
        video.time_base = info.time_base
        sounds = _add_sounds(container, _known_sounds(original, source), output)
        mux(container, _video_packets(segments, info, video), _sound_packets(original, sounds))


@contextmanager
def _told_in_a_line(output: Path) -> Iterator[None]:
    """Turn errors of FFmpeg into errors that name `output`."""
    try:
        yield
    except av.FFmpegError as error:
        raise UserError(
            f"{output}: can't be written ({error.strerror}); if its disk has space and its folder may be "
            f"written to, choose another of {', '.join(MUXERS)}, or convert the sound to AAC"
        ) from error


def _known_sounds(original: InputContainer, source: Path) -> Sequence[AudioStream]:
    """The original's audio streams, except those of codecs that FFmpeg can't name and so not copy."""
    known = [sound for sound in original.streams.audio if sound.codec_context]
    if unknown := len(original.streams.audio) - len(known):
        logger.warning(
            "%s: left out %d of its %d sound tracks, of unknown codecs; convert them to AAC to keep them",
            source,
            unknown,
            len(known) + unknown,
        )
    return known


def _add_sounds(
    container: OutputContainer, originals: Sequence[AudioStream], output: Path
) -> Mapping[int, Stream]:
    """Add a stream for each of the original audio streams, by its index there, and begin to write."""
    sounds = {}
    try:
        for sound in originals:
            copy = sounds[sound.index] = container.add_stream_from_template(sound)
            copy.disposition = sound.disposition
            if sound.language:
                copy.metadata["language"] = sound.language
        container.start_encoding()
    except ValueError as error:  # also FFmpeg's for a wrong argument, but not for a full disk
        codecs = ", ".join(sound.codec_context.name for sound in originals)
        raise UserError(
            f"{output}: can't hold this video's sound ({codecs}) as it is; choose another of "
            f"{', '.join(MUXERS)}, or convert the sound to AAC"
        ) from error
    return sounds


def _video_packets(segments: Sequence[Path], info: VideoInfo, video: VideoStream) -> Iterator[Packet]:
    """Packets of all segments. As there are no B-frames, the n-th is the n-th frame, whose time it gets."""
    start = round(info.start / info.time_base)
    times = [*info.timestamps, info.end]
    header = video.codec_context.extradata
    n = 0
    for segment in segments:
        with open_video(segment) as (container, stream):
            if stream.codec_context.extradata != header:
                raise UserError(f"{segment}: encoded in another way than {segments[0]}; stylise both again")
            for packet in filter(_has_content, container.demux(stream)):
                if n < info.frames:
                    packet.stream, packet.time_base = video, info.time_base
                    packet.pts = packet.dts = start + times[n]
                    packet.duration = times[n + 1] - times[n]
                    yield packet
                n += 1
    if n != info.frames:
        raise UserError(
            f"the segments from {segments[0]} on have {n} frames, the video {info.frames}; stylise it again"
        )


def _sound_packets(original: InputContainer, sounds: Mapping[int, Stream]) -> Iterator[Packet]:
    """Sound packets, as far as they can be read, with times from the beginning of the file's first stream."""
    if not sounds:  # without arguments, demux() takes all streams
        return
    start = origin(original)
    packets = demux(original, *(original.streams[index] for index in sounds))
    for packet in _forward(filter(_has_content, packets)):
        shift = round(start / packet.time_base)
        packet.stream = sounds[packet.stream_index]
        packet.dts = packet.dts - shift if packet.dts is not None else None
        packet.pts = packet.pts - shift if packet.pts is not None else None
        yield packet


def _forward(packets: Iterable[Packet]) -> Iterator[Packet]:
    """Packets without those that a clock's reset put at times which their stream had already reached.

    Without a reset, packets may share a time: Matroska's milliseconds are longer than TrueHD's packets.
    """
    latest: dict[int, float] = {}
    behind = set()
    for packet in packets:
        track = packet.stream_index
        reached = latest.get(track, -math.inf)
        dts = reached if packet.dts is None else packet.dts
        if dts < reached or (dts == reached and track in behind):
            behind.add(track)
            continue
        behind.discard(track)
        latest[track] = dts
        yield packet


def _has_content(packet: Packet) -> bool:
    """Whether a packet has data. A stream's last one hasn't: it makes a decoder hand out what it keeps."""
    return bool(packet.size)
