"""The step `fetch_images` has one cell for each shard of the photos, and one for each painting."""

from collections.abc import Iterator

from pipelines.catalog.paths import IMAGES
from pipelines.config.params import Config
from pipelines.config.style import PaintingsConfig, StyleConfig
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from tasks.fetch_painting import PaintingParams, fetch_painting
from tasks.fetch_photos import PhotosConfig, PhotosParams, fetch_photos


def run(step: Step, config: Config) -> None:
    """Write `data/images/{photos,samples}/<shard>/` and `data/images/paintings/<name>/`, each with a card."""
    step.compute(list(cells(config.style)), IMAGES)


def cells(style: StyleConfig) -> Iterator[Cell]:
    """The stage's cells, whose inputs are the user's own files that the configuration names."""
    yield from _photos("photos", style.photos)
    yield from _photos("samples", style.samples)
    yield from _paintings(style.paintings)


def _photos(name: str, photos: PhotosConfig) -> Iterator[Cell]:
    for shard in range(photos.shards):
        params = PhotosParams.of(photos, shard)
        yield Cell(
            f"{name}/shard-{shard:02}", fetch_photos, params, params.inputs(), {"source": photos.source}
        )


def _paintings(paintings: PaintingsConfig) -> Iterator[Cell]:
    for name, painting in paintings.sources.items():
        params = PaintingParams(name, painting.source, painting.sha256, paintings.long_side_px)
        yield Cell(f"paintings/{name}", fetch_painting, params, params.inputs(), {"style": name})
