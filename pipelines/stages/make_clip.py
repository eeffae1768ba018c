"""The step `make_clip` has one cell."""

from pipelines.catalog.paths import SAMPLES, VIDEOS
from pipelines.config.params import Config
from pipelines.engine.cells import Cell
from pipelines.engine.stage import Step
from tasks.make_clip import fetch_clip


def run(step: Step, config: Config) -> None:
    """Write `data/videos/clip/clip.mp4`."""
    clip = config.style.clip
    step.compute([Cell("clip", fetch_clip, clip, {"photos": SAMPLES}, {"photo": clip.photo})], VIDEOS)
