"""Stage `fetch_images`: one cell a shard of the photos, one a painting."""

from collections.abc import Iterator

from pipelines.engine.cells import Cell
from pipelines.engine.config import Config
from pipelines.engine.stage import Stage
from pipelines.styles import IMAGES
from tasks.style.fetch_painting import PaintingParams, fetch_painting
from tasks.style.fetch_photos import PhotosParams, fetch_photos


def run(stage: Stage) -> None:
    """Leave `data/images/photos/<shard>/` and `data/images/paintings/<name>/`, each with a card."""
    stage.compute([*_photos(stage.config), *_paintings(stage.config)], IMAGES)


def _photos(config: Config) -> Iterator[Cell]:
    photos = config.style.photos
    for shard in range(photos.shards):
        params = PhotosParams.of(photos, shard)
        yield Cell(
            f"photos/shard-{shard:02}", fetch_photos, params, params.inputs(), {"source": photos.source}
        )


def _paintings(config: Config) -> Iterator[Cell]:
    paintings = config.style.paintings
    for name, painting in paintings.sources.items():
        params = PaintingParams(name, painting.source, painting.sha256, paintings.long_side_px)
        yield Cell(f"paintings/{name}", fetch_painting, params, params.inputs(), {"style": name})
