"""A video as cells, one for each segment, for the stage and the command that stylise videos."""

from collections.abc import Mapping
from pathlib import Path

from pipelines.engine.cells import Cell
from singleshot.style.apply.stylize import StylizeSettings
from singleshot.style.video.reader import VideoInfo
from singleshot.style.video.segments import MUXERS, StylizeSegmentParams, plan_segments, with_lead
from tasks.stylize_segment import stylize_segment


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
) -> list[Cell]:
    """A cell for each segment of `video`; `info` is what `probe` found. `join_segments` joins their files."""
    cells = []
    for number, segment in enumerate(plan_segments(info, frames_per_segment)):
        read, lead = with_lead(info, segment)
        params = StylizeSegmentParams(read, info.format, settings, batch_size, lead)
        inputs = {"video": video, "model": model}
        cells.append(
            Cell(f"{name}/segment-{number:04}", stylize_segment, params, inputs, tags, size=segment.frames)
        )
    return cells


def stylized_name(video: Path) -> str:
    """The name of a stylised video: the original's if its suffix allows H.264, else with `.mkv`."""
    return video.name if video.suffix.lower() in MUXERS else f"{video.stem}.mkv"
