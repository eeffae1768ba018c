"""The step `stylize` has, for each style, cells for photos, a large one, and segments of the video."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pipelines.catalog.paths import SAMPLES, STYLIZED
from pipelines.catalog.styles import model_of, video_of
from pipelines.catalog.videos import segment_cells, stylized_name
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from singleshot.style.video.join import join_segments
from singleshot.style.video.reader import VideoInfo, probe
from singleshot.style.video.segments import SEGMENT
from tasks.stylize_large import LargeParams, stylize_large
from tasks.stylize_photos import StylizeParams, stylize_photos


def run(step: Step, config: Config) -> None:
    """Write `results/style/stylized/<style>/`: photos, also before and after, a large one, and the video."""
    video = video_of(config)
    info = probe(video)
    step.compute([*_photos(config), *_large(config), *_segments(config, video, info)], STYLIZED, gpu=True)
    for style in config.style.training.styles:
        segments = STYLIZED / style / "segments"
        join_segments(sorted(segments.rglob(SEGMENT)), video, info, STYLIZED / style / stylized_name(video))
        shutil.rmtree(segments)


def _photos(config: Config) -> Iterator[Cell]:
    stylize = config.style.stylize
    for style in config.style.training.styles:
        params = StylizeParams(style, stylize.photos, stylize.short_side_px, stylize.settings)
        inputs = {"photos": SAMPLES, "model": model_of(style)}
        yield Cell(f"{style}/photos", stylize_photos, params, inputs, {"style": style})


def _large(config: Config) -> Iterator[Cell]:
    stylize = config.style.stylize
    settings = replace(stylize.settings, stroke=1.0)
    photo = Path(stylize.large.photo)
    given = {"photo": photo} if photo.suffix else {"photos": SAMPLES}
    for style in config.style.training.styles:
        inputs = {**given, "model": model_of(style)}
        params = LargeParams(stylize.large, settings)
        yield Cell(f"{style}/large", stylize_large, params, inputs, {"style": style})


def _segments(config: Config, video: Path, info: VideoInfo) -> Iterator[Cell]:
    stylize = config.style.stylize
    for style in config.style.training.styles:
        yield from segment_cells(
            f"{style}/segments",
            video,
            info,
            model_of(style),
            settings=stylize.settings,
            batch_size=stylize.batch_size,
            frames_per_segment=stylize.frames_per_segment,
            tags={"style": style, "video": video.name},
        )
