"""Task: one video of the scored episodes of several agents, side by side and in step."""

from dataclasses import dataclass

from PIL import Image

from singleshot.rl.evaluation.drawing import Caption, SideBySide
from singleshot.rl.evaluation.episode import load_episode
from singleshot.rl.evaluation.video import write_video
from tasks.job import Job, per_job

VIDEO, STILL = "animation.mp4", "still.jpg"
SECONDS = 10
"""Seconds that are shown of an episode: all of Hopper's and Walker2d's, which last 8 s, and a fifth of
HalfCheetah's 50 s."""
WIDTH, HEIGHT = 400, 226
"""Size of each agent's lane, in pixels."""


@dataclass(frozen=True)
class AnimateParams:
    """Captions of the agents, in the order of their lanes."""

    captions: tuple[Caption, ...]


@per_job
def animate(job: Job) -> None:
    """Draw a job's agents side by side, from the start of their episodes.

    Inputs: an `episode.safetensors` for each caption, by the caption's label. The output gets
    `animation.mp4`, and `still.jpg`, the frame after a third of the time.

    Raises:
        UserError: an input holds no episode.
    """
    captions = job.params.captions
    episodes = [load_episode(job.inputs[caption.label]) for caption in captions]
    scene = SideBySide(episodes, captions, WIDTH, HEIGHT)
    write_video(job.output / VIDEO, scene.frames(SECONDS), scene.frames_per_second)
    third = min(scene.longest, round(SECONDS / scene.step_seconds)) // 3
    Image.fromarray(scene.draw(third)).save(job.output / STILL, quality=85)
