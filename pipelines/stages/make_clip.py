"""Stage `make_clip`: one cell; the video that is stylised where no other is given."""

from pipelines.engine.cells import Cell
from pipelines.engine.stage import Stage
from pipelines.styles import SAMPLES, VIDEOS
from tasks.style.video.clip import fetch_clip


def run(stage: Stage) -> None:
    """Leave `data/videos/clip/clip.mp4`."""
    clip = stage.config.style.clip
    stage.compute([Cell("clip", fetch_clip, clip, {"photos": SAMPLES}, {"photo": clip.photo})], VIDEOS)
