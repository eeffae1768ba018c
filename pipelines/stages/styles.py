"""The stage `styles`: pictures by optimisation, networks of styles, and what they make."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pipelines.catalog.paths import SAMPLES, STUDIES, STYLES, STYLIZED, TRANSFERS
from pipelines.catalog.styles import (
    model_of,
    normalized,
    painting_of,
    segment_cells,
    stylized_name,
    training_inputs,
    training_of,
    transfer_name,
    transfers,
    video_of,
)
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Work, step
from singleshot.style.video.join import join_segments
from singleshot.style.video.reader import VideoInfo, probe
from singleshot.style.video.segments import SEGMENT
from tasks.stylize import LargeParams, StylizeParams, stylize_large, stylize_photos
from tasks.tables import concatenate
from tasks.train_style import train_style
from tasks.transfer_style import transfer_style


@step(
    "transfer_style",
    tags=("study", "backbone", "loss", "optimizer", "style"),
    metrics=("total", "content", "style"),
    tables=(STUDIES,),
)
def transfer_styles(work: Work, config: Config) -> None:
    """Optimise one picture at a time (Gatys et al. 2016), in studies of backbones, losses and optimisers.

    Steps are iterations. The pictures are among each run's artifacts; `studies.csv` has all losses.
    """
    cells = []
    for picture in transfers(config):
        settings = picture.config
        inputs = {
            "photos": SAMPLES,
            "painting": painting_of(picture.style),
            "backbone": normalized(settings.backbone),
        }
        tags = {
            "study": picture.study,
            "style": picture.style,
            "backbone": settings.backbone,
            "loss": settings.criterion,
            "optimizer": settings.optimizer,
        }
        cells.append(Cell(transfer_name(picture), transfer_style, picture, inputs, tags))
    directories = work.compute(cells, TRANSFERS, gpu=True)
    concatenate([directory / "history.csv" for directory in directories], STUDIES)


@step(
    "train_style",
    tags=("style",),
    metrics=("total_loss", "content_loss", "style_loss", "seconds_per_batch"),
)
def train_styles(work: Work, config: Config) -> None:
    """Train a network for each style (Johnson et al. 2016).

    Steps are batches. Previews and the contact sheet are among each run's artifacts.
    """
    cells = []
    for style in config.style.training.styles:
        params, inputs = training_of(config, style), training_inputs(config, style)
        cells.append(Cell(style, train_style, params, inputs, {"style": style}))
    work.compute(cells, STYLES, gpu=True)


@step("stylize", tags=("style", "video"), metrics=("seconds_per_image", "frames_per_second"))
def stylize(work: Work, config: Config) -> None:
    """Stylise the sample photos and a video in each trained style.

    The photos are among the artifacts.
    """
    video = video_of(config)
    info = probe(video)
    work.compute(list(_stylized(config, video, info)), STYLIZED, gpu=True)
    for style in config.style.training.styles:
        segments = STYLIZED / style / "segments"
        join_segments(sorted(segments.rglob(SEGMENT)), video, info, STYLIZED / style / stylized_name(video))
        shutil.rmtree(segments)


def _stylized(config: Config, video: Path, info: VideoInfo) -> Iterator[Cell]:
    settings = config.style.stylize
    large = LargeParams(settings.large, replace(settings.settings, stroke=1.0))
    photo = Path(settings.large.photo)
    enlarged = {"photo": photo} if photo.suffix else {"photos": SAMPLES}
    for style in config.style.training.styles:
        model = {"model": model_of(style)}
        photos = StylizeParams(style, settings.photos, settings.short_side_px, settings.settings)
        yield Cell(f"{style}/photos", stylize_photos, photos, model | {"photos": SAMPLES}, {"style": style})
        yield Cell(f"{style}/large", stylize_large, large, model | enlarged, {"style": style})
        yield from segment_cells(
            f"{style}/segments",
            video,
            info,
            model_of(style),
            settings=settings.settings,
            batch_size=settings.batch_size,
            frames_per_segment=settings.frames_per_segment,
            tags={"style": style, "video": video.name},
        )


STEPS = (transfer_styles, train_styles, stylize)
