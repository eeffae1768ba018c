"""Joining of a video's stylised segments, with all that the original has besides its frames."""

import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import av
from av.audio.stream import AudioStream
from av.codec import Codec
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.stream import Disposition, Stream
from av.video.stream import VideoStream

from singleshot.errors import UserError, explained
from singleshot.io.h264 import address, mux
from singleshot.io.whole_file import whole_file
from singleshot.style.video.reader import VideoInfo, demux, open_video, origin

logger = logging.getLogger(__name__)

BeforeWriting = Callable[[Path, Path], None]
"""What is called with a file to be written, and with the whole one that is about to be moved there."""

MUXERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}
"""Muxers of files that can hold H.264, by suffix."""
OF_THE_FILE = {
    *("major_brand", "minor_version", "compatible_brands", "encoder", "duration", "alpha_mode", "vendor_id"),
    *("number_of_frames", "number_of_bytes", "bps", "_statistics_writing_app", "_statistics_tags"),
    *("_statistics_writing_date_utc", "rotate"),
}
"""Keys of metadata that describe the old file, not what is shown; in lower case."""


def stylized_name(video: Path) -> str:
    """The name of a stylised video: the original's, or one in `.mkv` if its suffix does not allow H.264."""
    return video.name if video.suffix.lower() in MUXERS else f"{video.stem}.mkv"


def plan_tracks(source: Path, output: Path) -> Mapping[int, str | None]:
    """How each stream of a video, except its frames, is written, by index: copied (None) or by an encoder.

    Sound that a file of `output`'s suffix can't hold is encoded: PCM as PCM, other sound as AAC. A line says
    this, and what can't be written at all.

    Raises:
        UserError: such a file can't hold H.264.
    """
    muxer = _muxer(output)
    ways: dict[int, str | None] = {}
    left_out = []
    with open_video(source) as (original, _):
        for stream in original.streams:
            if stream.type == "video" and not stream.disposition & Disposition.attached_pic:
                continue  # the frames; players show no second video
            if stream.type == "data" and ("timecode" in stream.metadata or original.chapters()):
                continue  # FFmpeg writes it from the metadata and the chapters
            codec = stream.codec_context.name if stream.codec_context else "an unknown codec"
            way = next((way for way in (None, *_encoders(stream)) if _can_hold(muxer, stream, way)), "none")
            if way == "none":
                left_out.append(f"{stream.type} ({codec})")
                continue
            ways[stream.index] = way
            if way:
                logger.warning("%s: encodes the sound (%s) as %s, as it can't hold that", output, codec, way)
    if left_out:
        logger.warning("%s: left out %s, which it can't hold", output, ", ".join(left_out))
    return ways


def join_segments(
    segments: Sequence[Path],
    source: Path,
    info: VideoInfo,
    output: Path,
    ways: Mapping[int, str | None] | None = None,
    before: BeforeWriting | None = None,
) -> None:
    """Write a video with the frames of `segments`, and all else of `source` (described by `info`).

    Each frame appears when its original does. Sound and subtitles are copied and keep their position relative
    to the frames, as far as such a file can hold them (`ways`, by default :func:`plan_tracks`); so are
    chapters, attached files and metadata. `output` is replaced once the video is whole, after a call of
    `before` with it and the whole one.

    Raises:
        UserError: the segments aren't this video's, a file of `output`'s suffix can't hold H.264, or it can't
            be written.
    """
    muxer = _muxer(output)
    ways = plan_tracks(source, output) if ways is None else ways
    of_another = f"choose another of {', '.join(MUXERS)}"
    fix = f"if its disk has space and its folder is writable, {of_another}"
    with (
        explained(f"{output}: can't be written", fix, (av.FFmpegError, OSError)),
        open_video(source) as (original, pictures),
        open_video(segments[0]) as (_, template),
        whole_file(output) as file,
    ):
        # An MP4 has texts that most players know or, by this flag, any (QuickTime's).
        any_texts = muxer != "matroska" and any("." in key for key in original.metadata)
        options = {"movflags": "use_metadata_tags"} if any_texts else {}
        with av.open(address(file), "w", format=muxer, options=options) as container:
            video = container.add_stream_from_template(template)
            video.time_base = info.time_base
            video.metadata.update(_texts(pictures.metadata))
            container.metadata.update(_texts(original.metadata))
            _add_chapters(container, original)
            tracks = {i: _add_track(container, original.streams[i], way) for i, way in ways.items()}
            packets = _video_packets(segments, info, video)
            refused = mux(container, packets, _other_packets(original, tracks, ways))
        if before:
            before(output, file)
    if refused:
        logger.warning("%s: left out %d damaged packets of sound or subtitles", output, refused)


def _muxer(output: Path) -> str:
    if muxer := MUXERS.get(output.suffix.lower()):
        return muxer
    raise UserError(f"{output}: can't hold H.264; choose a name that ends in {', '.join(MUXERS)}")


def _texts(metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata without what describes the file itself."""
    return {key: text for key, text in metadata.items() if key.lower() not in OF_THE_FILE}


def _encoders(stream: Stream) -> Sequence[str]:
    """Encoders for sound that a file can't hold as it is: without loss where it has none."""
    if not isinstance(stream, AudioStream) or not stream.codec_context:
        return []
    if stream.codec_context.name.startswith(("pcm", "s302m")):
        return ["pcm_s24le" if stream.codec_context.format.bits > 16 else "pcm_s16le", "aac"]
    return ["aac"]


def _can_hold(muxer: str, stream: Stream, way: str | None) -> bool:
    """Whether a file can hold a stream, copied or encoded."""
    if stream.type in ("attachment", "video"):  # as a track of a Matroska file, a cover would be a video
        return (muxer == "matroska") == (stream.type == "attachment")
    if not stream.codec_context:
        return False
    try:
        with av.open(io.BytesIO(), "w", format=muxer) as container:
            if stream.type == "subtitle" and stream.codec_context.name not in container.supported_codecs:
                return False
            _add_track(container, stream, way)
            container.start_encoding()
    except (ValueError, av.FFmpegError):
        return False
    return True


def _add_track(container: OutputContainer, stream: Stream, way: str | None) -> Stream:
    copy: Stream
    if way is None:
        copy = container.add_stream_from_template(stream)
    else:
        assert isinstance(stream, AudioStream), "only sound is encoded"
        sound = stream.codec_context
        rates, layout = Codec(way, "w").audio_rates or [sound.sample_rate], sound.layout.name
        if "channels" in layout:  # the file tells their number alone
            layout = f"{sound.layout.nb_channels}c"
        rate = min(rates, key=lambda rate: abs(rate - sound.sample_rate))
        copy = container.add_stream(way, rate=rate, layout=layout)
    copy.disposition = stream.disposition
    copy.metadata.update(_texts(stream.metadata))
    return copy


def _add_chapters(container: OutputContainer, original: InputContainer) -> None:
    """Copy the chapters, with times from the beginning of the file's first stream."""
    chapters = original.chapters()
    for chapter in chapters:
        shift = round(origin(original) / (chapter["time_base"] or 1))
        chapter["start"], chapter["end"] = (max(chapter[key] - shift, 0) for key in ("start", "end"))
    container.set_chapters(chapters)


def _video_packets(segments: Sequence[Path], info: VideoInfo, video: VideoStream) -> Iterator[Packet]:
    """Packets of all segments. As there are no B-frames, the n-th is the n-th frame, whose time it gets."""
    start = round(info.start / info.time_base)
    times = [*info.timestamps, info.end]
    header = video.codec_context.extradata
    n = 0
    for segment in segments:
        with open_video(segment) as (container, stream):
            if stream.codec_context.extradata != header:
                raise UserError(f"{segment}: encoded differently from {segments[0]}; stylise both again")
            for packet in filter(_has_content, container.demux(stream)):
                if n < info.frames:
                    packet.stream, packet.time_base = video, info.time_base
                    packet.pts = packet.dts = start + times[n]
                    packet.duration = times[n + 1] - times[n]
                    yield packet
                n += 1
    if n != info.frames:
        raise UserError(f"segments from {segments[0]} on have {n} frames of {info.frames}; stylise it again")


def _other_packets(
    original: InputContainer, tracks: Mapping[int, Stream], ways: Mapping[int, str | None]
) -> Iterator[Packet]:
    """Packets of tracks, as far as they can be read, with times from the start of the first stream."""
    streams = [original.streams[index] for index in tracks]
    with_packets = [stream for stream in streams if stream.type != "attachment"]
    if not with_packets:  # without arguments, demux() takes all streams
        return
    start = origin(original)
    for packet in filter(_has_content, demux(original, *with_packets)):
        shift = round(start / packet.time_base)
        packet.dts = packet.dts - shift if packet.dts is not None else None
        packet.pts = packet.pts - shift if packet.pts is not None else None
        if ways[packet.stream_index]:
            yield from _encoded(packet.stream, packet, tracks[packet.stream_index])
        else:
            packet.stream = tracks[packet.stream_index]
            yield packet
    for stream in with_packets:
        if ways[stream.index]:
            yield from _encoded(stream, None, tracks[stream.index])


def _encoded(stream: Stream, packet: Packet | None, track: Stream) -> Iterator[Packet]:
    """The sound of a packet, or what codecs keep (None), encoded, but for what is damaged."""
    assert isinstance(stream, AudioStream)
    assert isinstance(track, AudioStream)
    with suppress(av.FFmpegError, ValueError):
        for frame in stream.codec_context.decode(packet):
            yield from track.encode(frame)
        if packet is None:
            yield from track.encode(None)


def _has_content(packet: Packet) -> bool:
    """Whether a packet has data. A stream's last one hasn't: it makes a decoder hand out what it keeps."""
    return bool(packet.size)
