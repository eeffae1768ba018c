"""The stage `pictures`: photos, paintings, a video, and the networks that styles are learned with."""

from collections.abc import Iterator
from typing import get_args

from pipelines.catalog.paths import BACKBONES, IMAGES, PHOTOS, SAMPLES, VIDEOS
from pipelines.config.params import Config
from pipelines.config.style import StyleConfig
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Work, step
from singleshot.style.backbones import BackboneName
from tasks.fetch import (
    PaintingParams,
    PhotosParams,
    WeightsParams,
    fetch_painting,
    fetch_photos,
    fetch_weights,
)
from tasks.make_clip import fetch_clip


@step("fetch_images", tags=("source", "style"))
def fetch_images(work: Work, config: Config) -> None:
    """Pack the photos that styles are trained on, and draw or fetch the paintings."""
    work.compute(list(image_cells(config.style)), IMAGES)


def image_cells(style: StyleConfig) -> Iterator[Cell]:
    """A cell for each shard of the photos, and one for each painting.

    Their inputs are the user's own files that the configuration names.
    """
    for name, photos in (("photos", style.photos), ("samples", style.samples)):
        for shard in range(photos.shards):
            params = PhotosParams(photos, shard)
            tags = {"source": photos.source}
            yield Cell(f"{name}/shard-{shard:02}", fetch_photos, params, params.inputs(), tags)
    for name, given in style.paintings.sources.items():
        painting = PaintingParams(name, given, style.paintings.long_side_px)
        yield Cell(f"paintings/{name}", fetch_painting, painting, painting.inputs(), {"style": name})


@step("fetch_weights", tags=("backbone",))
def fetch_backbones(work: Work, config: Config) -> None:
    """Fetch the weights of VGG-16, VGG-19, AlexNet and LPIPS, and normalise the backbones' activations.

    Steps are layers. `mean`: the mean of a layer's activations before normalisation. `clamped`: the number of
    channels whose mean activation is close to zero.
    """
    weights = config.style.weights
    cells = [
        Cell(name, fetch_weights, params, {"photos": PHOTOS}, {"backbone": name})
        for name in (*get_args(BackboneName), "lpips")
        for params in [WeightsParams(name, weights.source, weights.normalization)]
    ]
    work.compute(cells, BACKBONES, gpu=True)


@step("make_clip", tags=("photo",))
def make_clip(work: Work, config: Config) -> None:
    """Make the video that is stylised if no other is given."""
    clip = config.style.clip
    work.compute([Cell("clip", fetch_clip, clip, {"photos": SAMPLES}, {"photo": clip.photo})], VIDEOS)


STEPS = (fetch_images, fetch_backbones, make_clip)
