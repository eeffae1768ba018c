"""Writing frames as H.264 files: at an exact frame rate, in true colours, interleaved with sound."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.container import OutputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace
from av.video.stream import VideoStream

from singleshot.io.images import Frame

TRANSPARENT_CRF = 18
"""Constant rate factor with which a video can hardly be told from its input."""
X264 = {"preset": "veryfast", "bf": "0", "threads": "4", "mbtree": "0"}
"""Options of x264. Without B-frames, packets come in the order of display, so the packets of segments can be
joined unchanged. `veryfast` takes 12 ms of a core for a frame of 1280x720, the default preset 30 ms, and
files are as large. The bytes must not depend on the machine or the moment. So the number of threads, which
affects them, is fixed, and macroblock trees are off: with AVX-512, x264 165 computes them differently now and
then (of 2,400 files of the same 12 frames of 320x240, 4 differed). Without them, a file of 1280x720 is a
third larger, and its PSNR 0.4 dB higher."""

BT709 = 1
"""Code of ITU-T H.273 for BT.709's primaries, transfer function and matrix alike."""


def address(path: Path) -> str:
    """A file's address for FFmpeg, which takes the part of a bare name before a colon for a protocol."""
    return f"file:{path.absolute()}"


@dataclass(frozen=True)
class VideoFormat:
    """Properties that all frames of a video share. Ratios are strings (`30000/1001`), to be kept as JSON."""

    width: int
    height: int
    frame_rate: str
    """Frames per second; the mean if the rate varies."""
    pixel_aspect: str = "1"
    """Width of a pixel over its height."""
    primaries: int = BT709
    transfer: int = BT709
    """Codes of ITU-T H.273 for `primaries` and `transfer`."""


def add_h264(container: OutputContainer, video: VideoFormat, crf: int = TRANSPARENT_CRF) -> VideoStream:
    """Add a stream for :func:`encode`. A higher `crf` makes the file smaller and its quality lower."""
    options = {"crf": f"{crf}", **X264}
    stream = container.add_stream("libx264", rate=Fraction(video.frame_rate), options=options)
    stream.width, stream.height = video.width, video.height
    # 4:2:0 has one colour per 2x2 pixels, so it needs even sides.
    stream.pix_fmt = "yuv444p" if video.width % 2 or video.height % 2 else "yuv420p"
    context = stream.codec_context
    context.sample_aspect_ratio = Fraction(video.pixel_aspect)
    context.color_primaries, context.color_trc = video.primaries, video.transfer
    context.colorspace, context.color_range = BT709, ColorRange.MPEG
    return stream


def encode(stream: VideoStream, frames: Iterable[Frame]) -> Iterator[Packet]:
    """Encode frames at the stream's frame rate, from time 0 on; the n-th packet holds the n-th frame."""
    for number, pixels in enumerate(frames):
        frame = VideoFrame.from_ndarray(np.ascontiguousarray(pixels)).reformat(
            format=stream.pix_fmt, dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
        )
        frame.pts, frame.time_base = number, 1 / stream.codec_context.framerate
        yield from stream.encode(frame)
    yield from stream.encode(None)


def mux(container: OutputContainer, *streams: Iterable[Packet]) -> int:
    """Write the packets of streams, each in order, so that packets shown together are stored together.

    Returns the number of those that FFmpeg refuses, because they are damaged or of a time that their stream
    has reached before. Frames are never left out.
    """
    refused = 0
    for packet in heapq.merge(*streams, key=lambda packet: (packet.dts or 0) * packet.time_base):
        try:
            container.mux(packet)
        except (av.InvalidDataError, av.ArgumentError):
            if packet.stream.type == "video":
                raise
            refused += 1
    return refused
