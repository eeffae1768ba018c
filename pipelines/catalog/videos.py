"""A video as cells, one for each segment, for the stage and the command that stylise videos."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pipelines.engine.cells import Cell
from singleshot.errors import UserError
from singleshot.export.runtimes import RUNTIMES
from singleshot.export.stylizers import StylizerName
from singleshot.style.apply.stylize import StylizeSettings
from singleshot.style.video.join import MUXERS
from singleshot.style.video.reader import VideoInfo, open_video
from singleshot.style.video.segments import StylizeSegmentParams, plan_segments, with_lead
from tasks.stylize import SegmentParams, stylize_segment

MP4_SOUNDS = {"aac", "alac", "ac3", "eac3", "mp2", "mp3", "flac", "opus"}
"""Codecs of sound that an MP4 holds, by FFmpeg's names."""


def segment_cells(
    name: str,
    video: Path,
    info: VideoInfo,
    model: Path,
    *,
    settings: StylizeSettings,
    batch_size: int,
    frames_per_segment: int,
    tags: Mapping[str, str],
    runtime: StylizerName = "torch",
) -> list[Cell]:
    """A cell for each segment of `video`; `info` is what `probe` found. `join_segments` joins their files."""
    cells = []
    for number, segment in enumerate(plan_segments(info, frames_per_segment)):
        read, lead = with_lead(info, segment)
        params = SegmentParams(StylizeSegmentParams(read, info.format, settings, batch_size, lead), runtime)
        cells.append(
            Cell(
                f"{name}/segment-{number:04}",
                stylize_segment,
                params,
                {"video": video, "model": model},
                tags,
                size=segment.frames,
                modules=(RUNTIMES[runtime].module,),
            )
        )
    return cells


def stylized_name(video: Path) -> str:
    """The name of a stylised video: the original's if its suffix allows H.264.

    Else it ends in `.mp4` where the original is of that family, or in `.mkv`, which
    can hold any sound and subtitles.
    """
    if video.suffix.lower() in MUXERS:
        return video.name
    with suppress(UserError), open_video(video) as (container, _):
        sounds = {track.codec_context and track.codec.canonical_name for track in container.streams.audio}
        if "mp4" in container.format.name.split(",") and sounds <= MP4_SOUNDS:
            return f"{video.stem}.mp4"
    return f"{video.stem}.mkv"
