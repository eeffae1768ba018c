"""Videos, read frame by frame, with exact times, upright pixels and true colours, even from damaged files.

PyAV (FFmpeg) decodes them. OpenCV's `VideoCapture` gives times as doubles in milliseconds, can't seek to a
frame by its timestamp, doesn't report damage, and turns a mirrored video by 180° instead of mirroring it.
"""

import logging
import math
import statistics
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path

import av
import numpy as np
from av.codec.context import CodecContext
from av.container import InputContainer
from av.filter import Graph
from av.packet import Packet
from av.stream import Disposition, Stream
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from singleshot.errors import UserError
from singleshot.io.colour_profiles import HDR
from singleshot.io.h264 import BT709, VideoFormat, address
from singleshot.io.images import Frame

logger = logging.getLogger(__name__)

UNSPECIFIED = (0, 2)
"""Codes of ITU-T H.273 that leave a colour unspecified."""
FILMS = (
    "3dostr,4xm,amv,apng,apv,asf,av1,avi,avs,avs2,avs3,bfi,bink,bmv,c93,cavsvideo,cine,"
    "dhav,dirac,dnxhd,dv,dxa,ea,evc,film_cpk,filmstrip,flic,flv,gif,gxf,h261,h263,h264,"
    "hevc,hnm,idcin,ifv,ipmovie,iv8,ivf,ivr,jv,kux,live_flv,lmlm4,lvf,lxf,m4v,matroska,"
    "mgsts,mjpeg,mjpeg_2000,moflex,mov,mpeg,mpegts,mpegvideo,mtv,mv,mvi,mxf,nsv,nut,nuv,"
    "obu,ogg,paf,pva,r3d,rl2,rm,roq,rpl,ser,siff,smk,smush,swf,thp,ty,v210,vc1,"
    "vc1test,vivo,vividas,vmd,vvc,wc3movie,wtv,xmv,yop,yuv4mpegpipe"
)
"""FFmpeg's formats of films. Its others are of texts, sounds and pictures, or open what they name, as play
lists do."""
NO_TIMESTAMPS = 0x80
"""FFmpeg's flag (AVFMT_NOTIMESTAMPS) of formats without timestamps, such as bare streams."""
RESTARTS = 0x200
"""Its flag (AVFMT_TS_DISCONT) of formats whose clocks may start anew, as recordings in a row do."""
OVERLAP, GAP = Fraction(1, 10), 60
"""How far a stream's clock may go back, and ahead, in seconds, before it counts as one that starts anew."""
KNOWN_COLOURS = {
    "color_matrix": {0, 1, 2, 4, 5, 6, 7, 9},
    "transfer": {1, 2, *range(4, 9), *range(11, 19)},
    "primaries": {1, 2, *range(4, 13), 22},
}
"""Codes of ITU-T H.273 that FFmpeg's filters convert."""
WITH_ALPHA = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""Decoders that see the opacity of WebM's films, which FFmpeg's own leave out."""
HD_LINES = 720
"""Height from which on players take untagged colours for BT.709's; below it, they take them for BT.601's."""
WIDE_PRIMARIES = (9, 11, 12)
"""Codes of ITU-T H.273 for BT.2020's primaries, and P3's with two white points."""
TICKS_PER_SECOND = 10_000
"""Minimum resolution of a time base. If the first frame comes some time after the start of the sound, its
time is then exact to 0.1 ms."""
SHORT_SECONDS = 0.5
"""A file that ends this long before its stated end is truncated; a smaller difference may be rounding."""
SEEK_SECONDS = (0, 10, None)
"""How far before a frame decoding may begin, in seconds, in the order of trial. With 0 it begins at the
keyframe before the frame, which suffices if the file's index leads there and the decoder needs nothing from
before it; 10 is well before; None is the beginning of the file."""


@dataclass(frozen=True)
class Segment:
    """Consecutive frames of a video."""

    start: int
    """Number of the first frame, counted from 0."""
    frames: int
    first_pts: int
    """Timestamp of the first frame (:attr:`VideoInfo.pts`)."""
    stop_pts: int | None
    """Timestamp of the frame after the last one; None if there is none."""
    checksum: int
    """Checksum of the frames' pixels, by which they are recognised."""


@dataclass(frozen=True)
class VideoInfo:
    """Properties of a video, found by decoding all of it."""

    format: VideoFormat
    """Format of the upright frames."""
    time_base: Fraction
    """Unit of `timestamps`, in seconds."""
    timestamps: tuple[int, ...]
    """Time at which each frame appears, with the first at 0."""
    end: int
    """Time at which the last frame disappears, in the same unit."""
    start: Fraction
    """Time from :func:`origin` to the first frame, in seconds."""
    pts: tuple[int, ...]
    """Timestamps of the frames in the file; the frames' numbers if it stores none."""
    checksums: tuple[int, ...]
    """Checksums of the frames' pixels, one for each frame."""
    expected_frames: int
    """Number of frames that the file should have had: more than `frames` if it is damaged."""

    @property
    def frame_rate(self) -> Fraction:
        """Frames per second; the mean where it varies."""
        return Fraction(self.format.frame_rate)

    @property
    def frames(self) -> int:
        """Number of frames that can be decoded."""
        return len(self.timestamps)

    def segment(self, start: int, stop: int) -> Segment:
        """Frames `start` to before `stop`."""
        return Segment(
            start,
            stop - start,
            first_pts=self.pts[start],
            stop_pts=self.pts[stop] if stop < self.frames else None,
            checksum=_combined(self.checksums[start:stop]),
        )


def probe(path: Path) -> VideoInfo:
    """Decode a whole video, frame by frame, to find its properties.

    Damage is logged as a warning, with the numbers of frames, and so is what H.264 of 8 bits can't show.

    Raises:
        UserError: there is no such file or no video in it, or none of its frames can be decoded.
    """
    with open_video(path) as (container, stream):
        condition = _Condition()
        frames = _decode(demux(container), stream, condition)
        if (first := next(frames, None)) is None:
            raise UserError(
                f"{path}: none of its frames can be decoded ({stream.codec_context.name}); the file is "
                "damaged: record or copy it again"
            )
        pts, checksums, last = [], [], first
        for last in chain([first], frames):
            pts.append(last.pts)
            checksums.append(last.checksum())
        clock = _clock(stream, pts, last.image.duration)
        info = VideoInfo(
            format=_format(stream, first, clock.frame_rate),
            time_base=clock.time_base,
            timestamps=clock.timestamps,
            end=clock.end,
            start=pts[0] * _tick(stream) - origin(container) if _stores_times(stream) else Fraction(0),
            pts=tuple(pts),
            checksums=tuple(checksums),
            expected_frames=_expected_frames(container, stream, clock, condition),
        )
    for words in first.lost():
        logger.warning("%s: %s", path, words)
    if info.expected_frames > info.frames:
        logger.warning(
            "%s: decoded %d of %d frames; the rest is damaged or missing",
            path,
            info.frames,
            info.expected_frames,
        )
    return info


def read_frames(path: Path) -> Iterator[Frame]:
    """Yield the frames that :func:`probe` counts, in order. Raises UserError as :func:`open_video` does."""
    with open_video(path) as (container, stream):
        yield from _shown(_decode(demux(container, stream), stream, _Condition()))


def read_segment(path: Path, segment: Segment) -> Iterator[Frame]:
    """Yield a segment's frames, the same as with :func:`read_frames`, while little else is decoded.

    The segment is decoded twice, first to see whether the seek led to exactly these frames. That takes a
    fraction of the time of stylising them, and seeks do mislead (in MPEG-2, to frames with the timestamps of
    others). Decoding from the beginning can't mislead, so checksums don't count then: the decoder may fill in
    damaged parts differently.

    Raises:
        UserError: the file isn't a video, or isn't the one that the segment was planned for.
    """
    # QuickTime's palettes come with the first packet, which a seek leaves out.
    for seconds in SEEK_SECONDS if segment.start else (None,):
        checksums = [frame.checksum() for frame in _seek_segment(path, segment, seconds)]
        if len(checksums) == segment.frames and (seconds is None or _combined(checksums) == segment.checksum):
            yield from _shown(_seek_segment(path, segment, seconds))
            return
    raise UserError(
        f"{path}: hasn't got all {segment.frames} frames from number {segment.start} on that it had when "
        "it was first read; stylise it again once nothing writes to it"
    )


@contextmanager
def open_video(path: Path) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a video file, and find the stream of pictures in it.

    Raises:
        UserError: there is no such file, or it isn't a video.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; name a video")
    try:
        container = av.open(address(path), options={"format_whitelist": FILMS}, metadata_errors="replace")
    except av.FFmpegError as error:
        reason = "not in a film's format" if isinstance(error, av.ArgumentError) else error.strerror
        raise UserError(
            f"{path}: not a video ({reason}), or one without its index, like an MP4 whose recording "
            "or download was cut off; record or copy it again"
        ) from error
    with container:
        videos = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
        if not videos or _is_in_another_file(container, path):
            raise UserError(f"{path}: there is no video in it; give a file that has one")
        if not videos[0].codec_context:
            raise UserError(f"{path}: its video can't be decoded; convert it to H.264, or record it again")
        yield container, videos[0]


def has_video(path: Path) -> bool:
    """Whether there is a video in a file."""
    try:
        with open_video(path):
            return True
    except UserError:
        return False


def _is_in_another_file(container: InputContainer, path: Path) -> bool:
    """Whether FFmpeg makes a video of the JPEGs in another file, such as a PDF."""
    if container.format.name != "mjpeg":
        return False
    with path.open("rb") as file:
        return file.read(2) != b"\xff\xd8"


def origin(container: InputContainer) -> Fraction:
    """When a file's first stream begins, in seconds; 0 if all that comes before time 0 is to be skipped."""
    return Fraction(max(container.start_time or 0, 0), av.time_base)


def demux(container: InputContainer, *streams: Stream) -> Iterator[Packet]:
    """Packets, of all streams by default, as far as the file can be read.

    Where a clock starts anew, its packets continue after the earlier ones. All streams are read for that, so
    that the times don't depend on which are asked for.
    """
    with suppress(av.FFmpegError):
        if not container.format.flags & RESTARTS:
            yield from container.demux(*streams)
            return
        shift, following = Fraction(0), dict[int, Fraction]()
        for packet in container.demux():
            if packet.dts is not None and packet.stream.type in ("video", "audio"):
                dts = packet.dts * packet.time_base
                expected = following.get(packet.stream_index, dts + shift)
                if not -OVERLAP <= dts + shift - expected <= GAP:
                    shift = expected - dts
                following[packet.stream_index] = dts + shift + (packet.duration or 0) * packet.time_base
            if shift:
                ticks = round(shift / packet.time_base)
                packet.dts = None if packet.dts is None else packet.dts + ticks
                packet.pts = None if packet.pts is None else packet.pts + ticks
            if not streams or packet.stream in streams:
                yield packet


def _seek_segment(path: Path, segment: Segment, seconds: int | None) -> Iterator["_Decoded"]:
    """Yield a segment's frames, decoded from the keyframe `seconds` before it, or the beginning (None)."""
    with open_video(path) as (container, stream):
        if seconds is not None:
            if not _stores_times(stream):
                return
            try:
                container.seek(segment.first_pts - round(seconds / _tick(stream)), stream=stream)
            except av.FFmpegError:  # the format has no index to seek by
                return
        for frame in _decode(demux(container, stream), stream, _Condition()):
            if segment.stop_pts is not None and frame.pts >= segment.stop_pts:
                return
            if frame.pts >= segment.first_pts:
                yield frame


@dataclass
class _Condition:
    """Condition of a file, as seen while it is decoded."""

    damaged: int = 0
    """Number of damaged packets and frames."""
    end: Fraction = field(default_factory=Fraction)
    """Time at which the last packet of any stream ends, in seconds."""


@dataclass(frozen=True)
class _Decoded:
    """A frame as the decoder gives it."""

    image: VideoFrame
    pts: int
    size: tuple[int, int]
    """Width and height at the beginning of the stream, which may change them midway."""
    matrix: tuple[int, int, int, int]
    """a, b, c, d: the pixel at (x, y) is shown at (ax + cy, bx + dy) (ISO/IEC 14496-12, 6.2.2)."""

    @property
    def is_transposed(self) -> bool:
        """Whether rows are shown as columns."""
        a, b, _, _ = self.matrix
        return abs(a) < abs(b)

    @property
    def has_alpha(self) -> bool:
        """Whether the frame has an opacity."""
        return any(component.is_alpha for component in self.image.format.components)

    @property
    def is_wide(self) -> bool:
        """Whether colours have to be converted for an ordinary display."""
        return self.image.color_trc in HDR or self.image.color_primaries in WIDE_PRIMARIES

    @property
    def unknown(self) -> list[str]:
        """Which of its colours' codes can't be converted."""
        image = self.image
        codes = zip(KNOWN_COLOURS, (image.colorspace, image.color_trc, image.color_primaries), strict=True)
        return [name for name, code in codes if code not in KNOWN_COLOURS[name]]

    def lost(self) -> Iterator[str]:
        """What a result doesn't keep, in words."""
        if self.unknown:
            yield f"has colours ({', '.join(self.unknown)}) that FFmpeg can't convert; read as BT.709"
        if name := HDR.get(self.image.color_trc):
            yield f"is HDR ({name}); the result is mapped to SDR"
        if self.has_alpha:
            yield "has an alpha channel, which H.264 lacks; transparent parts are laid over black"

    def checksum(self) -> int:
        """Checksum of every eighth row of the frame's luma, or of its palette and what counts in it.

        All rows would take as long as decoding.
        """
        plane = self.image.planes[0]
        if plane.line_size < 0:  # bottom-up: it begins with memory's last row, so the view would end past it
            return zlib.crc32(self.image.to_ndarray(format="gray")[::8].tobytes())
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)  # which may be padded
        palette = bytes(self.image.planes[1]) if self.image.format.name == "pal8" else b""
        return zlib.crc32(rows[::8, : plane.width].tobytes() + palette)


def _decode(packets: Iterable[Packet], stream: VideoStream, condition: _Condition) -> Iterator[_Decoded]:
    """Yield frames in display order, except damaged ones.

    After a damaged frame, the decoder guesses until a keyframe.
    """
    size, decoder = (stream.width, stream.height), _decoder(stream)
    stores_times = _stores_times(stream)
    number, last, matrix = 0, -math.inf, None
    for packet in packets:
        if packet.pts is not None:
            end = (packet.pts + (packet.duration or 0)) * packet.time_base
            condition.end = max(condition.end, end)
        if packet.stream is not stream:
            continue
        try:
            images = decoder.decode(packet if packet.size else None)
        except av.FFmpegError:
            condition.damaged += 1
            continue
        for image in images:
            pts = image.pts if stores_times else number
            if image.is_corrupt or pts is None or pts <= last:
                condition.damaged += 1
                continue
            matrix = matrix or _display_matrix(image)
            yield _Decoded(image, pts, size, matrix)
            number, last = number + 1, pts


def _decoder(stream: VideoStream) -> VideoCodecContext:
    name = WITH_ALPHA.get(stream.codec_context.name)
    if name is None or stream.metadata.get("alpha_mode") != "1":
        return stream.codec_context
    decoder = CodecContext.create(name, "r")
    assert isinstance(decoder, VideoCodecContext)
    return decoder


def _shown(frames: Iterable[_Decoded]) -> Iterator[Frame]:
    """The frames as an ordinary player shows them: whole, upright, of one size, in BT.709, over black."""
    graph, kind, interlaced = None, None, False
    for frame in frames:
        image = frame.image
        interlaced = interlaced or image.interlaced_frame
        of_now = image.width, image.height, image.format.name, interlaced
        if of_now != kind:
            yield from _filtered(graph, None)
            graph, kind = _graph(frame, interlaced), of_now
        yield from _filtered(graph, image)
    yield from _filtered(graph, None)


def _filtered(graph: Graph | None, image: VideoFrame | None) -> Iterator[Frame]:
    """The frames that are finished after one more, or after the last (None)."""
    if graph:
        graph.vpush(image)
        with suppress(av.BlockingIOError, av.EOFError):
            while True:
                yield graph.vpull().to_ndarray().astype(np.uint8, copy=False)


def _graph(frame: _Decoded, interlaced: bool) -> Graph:
    """FFmpeg's filters for frames like `frame`.

    bwdif makes whole pictures of interlaced ones, whose lines are of two moments: what is missing in a field
    it takes from the fields around it.
    """
    image, (x, b, c, y) = frame.image, frame.matrix
    if frame.is_transposed:
        x, y = c, b
    scale = "{}:{}:flags=bilinear".format(*frame.size)
    if image.colorspace in UNSPECIFIED and image.height >= HD_LINES:
        scale += ":in_color_matrix=bt709"
    scale += "".join(f":in_{name}=bt709" for name in frame.unknown)
    if frame.is_wide:  # what is lighter than a white sheet (203 cd/m2, ITU-R BT.2408) is white
        scale += ":out_primaries=bt709:out_transfer=bt709:intent=relative_colorimetric"
    chain = [("bwdif", "mode=send_frame:deint=interlaced")] if interlaced else []
    chain.append(("scale", scale))
    if frame.has_alpha:
        chain += [("format", "gbrap"), ("premultiply", "inplace=1")]
    chain.append(("format", "rgb24"))
    turns = (("transpose", "cclock_flip", frame.is_transposed), ("vflip", "", y < 0), ("hflip", "", x < 0))
    chain += [(name, options) for name, options, wanted in turns if wanted]
    graph, tick = Graph(), Fraction(1, 1000)
    source = graph.add_buffer(width=image.width, height=image.height, format=image.format, time_base=tick)
    graph.link_nodes(source, *(graph.add(*each) for each in chain), graph.add("buffersink")).configure()
    return graph


def _stores_times(stream: VideoStream) -> bool:
    """Whether frames have usable timestamps. AVI's are decoding times, which are wrong with B-frames."""
    file_format = stream.container.format
    return file_format.name != "avi" and not file_format.flags & NO_TIMESTAMPS


def _tick(stream: VideoStream) -> Fraction:
    """Unit of the frames' timestamps, in seconds."""
    if _stores_times(stream) and stream.time_base:
        return stream.time_base
    return 1 / (stream.guessed_rate or Fraction(25))


@dataclass(frozen=True)
class _Clock:
    frame_rate: Fraction
    time_base: Fraction
    timestamps: tuple[int, ...]
    end: int


def _clock(stream: VideoStream, pts: Sequence[int], last_duration: int) -> _Clock:
    """Times of frames: multiples of a frame's duration, if the timestamps may be such multiples, rounded.

    Matroska's timestamps are in milliseconds, so that frames at 29.97 a second come at 0, 33, 67, 100, …
    """
    tick, times = _tick(stream), [t - pts[0] for t in pts]
    if not _stores_times(stream):
        last_duration = 0  # it isn't in ticks
    for rate in filter(None, (stream.guessed_rate, stream.average_rate, stream.base_rate)):
        numbers = [round(t * tick * rate) for t in times]
        fits = all(abs(t * tick - n / rate) <= tick for t, n in zip(times, numbers, strict=True))
        if fits and all(n < following for n, following in pairwise(numbers)):
            return _fine_clock(numbers, numbers[-1] + max(round(last_duration * tick * rate), 1), 1 / rate)
    return _fine_clock(times, times[-1] + max(last_duration, 1), tick)


def _fine_clock(times: Sequence[int], end: int, unit: Fraction) -> _Clock:
    """The same times in a time base of 1/n seconds, with at least `TICKS_PER_SECOND`."""
    is_constant = statistics.median(b - a for a, b in pairwise([*times, end])) == 1  # except lost frames
    fine = math.ceil(Fraction(TICKS_PER_SECOND, unit.denominator))
    step = unit.numerator * fine
    return _Clock(
        frame_rate=1 / unit if is_constant else (len(times) / (end * unit)).limit_denominator(1001),
        time_base=Fraction(1, unit.denominator * fine),
        timestamps=tuple(t * step for t in times),
        end=end * step,
    )


def _format(stream: VideoStream, first: _Decoded, frame_rate: Fraction) -> VideoFormat:
    width, height = first.size
    aspect = stream.sample_aspect_ratio or Fraction(1)
    if first.is_transposed:
        width, height, aspect = height, width, 1 / aspect
    codes = first.image.color_primaries, first.image.color_trc
    unsure = first.is_wide or first.unknown
    primaries, transfer = (BT709 if code in UNSPECIFIED or unsure else code for code in codes)
    return VideoFormat(width, height, str(frame_rate), str(aspect), primaries, transfer)


def _expected_frames(
    container: InputContainer, stream: VideoStream, clock: _Clock, condition: _Condition
) -> int:
    """Number of frames that there should have been; the actual number if there is no sign of damage."""
    frames = len(clock.timestamps)
    start, duration = (Fraction(t or 0, av.time_base) for t in (container.start_time, container.duration))
    if container.format.name.startswith("matroska"):
        duration -= start  # it counts from 0
    elif container.format.flags & RESTARTS:
        duration = condition.end - start  # the file says none, and FFmpeg's guess is by one clock
    if not condition.damaged and start + duration - condition.end < SHORT_SECONDS:
        return frames
    return max(frames + condition.damaged, stream.frames or round(duration * clock.frame_rate))


def _combined(checksums: Sequence[int]) -> int:
    return zlib.crc32(np.array(checksums, "<u4").tobytes())


def _display_matrix(image: VideoFrame) -> tuple[int, int, int, int]:
    """:attr:`_Decoded.matrix` of a frame. Reading it keeps the frame in memory until garbage is collected."""
    with suppress(KeyError):
        matrix = image.side_data["DISPLAYMATRIX"]  # type: ignore[typeddict-item]  # its stub hasn't got it
        a, b, _, c, d, *_ = np.frombuffer(bytes(matrix), np.int32).tolist()
        return a, b, c, d
    return 1, 0, 0, 1
