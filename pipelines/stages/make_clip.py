"""The stage `make_clip` has one cell."""

from pipelines.catalog.paths import SAMPLES, VIDEOS
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Stage
from tasks.make_clip import fetch_clip


def run(stage: Stage, config: Config) -> None:
    """Write `data/videos/clip/clip.mp4`."""
    clip = config.style.clip
    stage.compute([Cell("clip", fetch_clip, clip, {"photos": SAMPLES}, {"photo": clip.photo})], VIDEOS)
