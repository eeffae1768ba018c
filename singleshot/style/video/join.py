"""The join of a video's stylised segments, with all that the original has besides its frames."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import av
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.stream import Disposition, Stream
from av.video.stream import VideoStream

from singleshot.errors import UserError
from singleshot.io.h264 import address, mux
from singleshot.io.whole_file import whole_file
from singleshot.style.video.reader import VideoInfo, demux, open_video, origin

logger = logging.getLogger(__name__)

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


def join_segments(segments: Sequence[Path], source: Path, info: VideoInfo, output: Path) -> None:
    """Write a video with the frames of `segments`, and all else of `source` (described by `info`).

    Each frame appears when its original does. Sound and subtitles are copied, without encoding them again,
    and keep their position relative to the frames; so are chapters, attached files and metadata. What a file
    of `output`'s suffix can't hold is left out, with a warning. `output` is replaced once the video is whole.

    Raises:
        UserError: the segments aren't this video's, a file of `output`'s suffix can't hold H.264 or this
            sound, or it can't be written.
    """
    muxer = MUXERS.get(output.suffix.lower())
    if muxer is None:
        raise UserError(f"{output}: can't hold H.264; choose a name that ends in {', '.join(MUXERS)}")
    with (
        _told_in_a_line(output),
        open_video(source) as (original, pictures),
        open_video(segments[0]) as (_, template),
        whole_file(output) as file,
        av.open(address(file), "w", format=muxer, options=_options(original, muxer)) as container,
    ):
        video = container.add_stream_from_template(template)
        video.time_base = info.time_base
        video.metadata.update(_texts(pictures.metadata))
        container.metadata.update(_texts(original.metadata))
        _add_chapters(container, original)
        tracks = _add_tracks(container, original, output)
        mux(container, _video_packets(segments, info, video), _other_packets(original, tracks))


def _options(original: InputContainer, muxer: str) -> dict[str, str]:
    """Options for the muxer. An MP4 has texts that most players know or, by this flag, any (QuickTime's)."""
    any_texts = muxer != "matroska" and any("." in key for key in original.metadata)
    return {"movflags": "use_metadata_tags"} if any_texts else {}


def _texts(metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata without what describes the file itself."""
    return {key: text for key, text in metadata.items() if key.lower() not in OF_THE_FILE}


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


def _add_tracks(container: OutputContainer, original: InputContainer, output: Path) -> Mapping[int, Stream]:
    """Add a stream for each of the original's but its frames, by its index there, and begin to write."""
    tracks: dict[int, Stream] = {}
    left_out = []
    for stream in original.streams:
        if stream.type == "video" and not stream.disposition & Disposition.attached_pic:
            continue  # the frames; players show no second video
        if stream.type == "data" and ("timecode" in stream.metadata or original.chapters()):
            continue  # FFmpeg writes it from the metadata and the chapters
        codec = stream.codec_context.name if stream.codec_context else "an unknown codec"
        holds_files = container.format.name == "matroska"
        known = bool(stream.codec_context)
        if stream.type in ("attachment", "video"):  # as a track of a Matroska file, a cover would be a video
            known = holds_files == (stream.type == "attachment")
        try:
            if not known or (stream.type == "subtitle" and codec not in container.supported_codecs):
                raise ValueError(codec)
            copy = container.add_stream_from_template(stream)
        except ValueError as error:
            if stream.type == "audio" and stream.codec_context:
                raise _cannot_hold(output, original) from error
            left_out.append(f"{stream.type} ({codec})")
            continue
        copy.disposition = stream.disposition
        copy.metadata.update(_texts(stream.metadata))
        if stream.type != "attachment":  # which has no packets
            tracks[stream.index] = copy
    if left_out:
        logger.warning("%s: left out %s, which it can't hold", output, ", ".join(left_out))
    try:
        container.start_encoding()
    except ValueError as error:  # also FFmpeg's for a wrong argument, but not for a full disk
        raise _cannot_hold(output, original) from error
    return tracks


def _cannot_hold(output: Path, original: InputContainer) -> UserError:
    codecs = ", ".join(sound.codec_context.name for sound in original.streams.audio if sound.codec_context)
    return UserError(
        f"{output}: can't hold this video's sound ({codecs}) as it is; choose another of "
        f"{', '.join(MUXERS)}, or convert the sound to AAC"
    )


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


def _other_packets(original: InputContainer, tracks: Mapping[int, Stream]) -> Iterator[Packet]:
    """Packets of tracks, as far as they can be read, with times from the start of the first stream."""
    if not tracks:  # without arguments, demux() takes all streams
        return
    start = origin(original)
    packets = demux(original, *(original.streams[index] for index in tracks))
    for packet in _forward(filter(_has_content, packets)):
        shift = round(start / packet.time_base)
        packet.stream = tracks[packet.stream_index]
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
        if dts < reached:
            behind.add(track)
        elif dts > reached:
            behind.discard(track)
        if track not in behind:
            latest[track] = dts
            yield packet


def _has_content(packet: Packet) -> bool:
    """Whether a packet has data. A stream's last one hasn't: it makes a decoder hand out what it keeps."""
    return bool(packet.size)
