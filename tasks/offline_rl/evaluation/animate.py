"""Task: the scored episodes of agents as one video, side by side and in step."""

from dataclasses import dataclass

from PIL import Image

from tasks.job import Job, per_job
from tasks.offline_rl.evaluation.drawing import Caption, SideBySide
from tasks.offline_rl.evaluation.episode import load_episode
from tasks.offline_rl.evaluation.video import write_video

VIDEO, STILL = "animation.mp4", "still.jpg"
SECONDS = 10
"""Shown of an episode: all of Hopper's and Walker2d's, which last 8, and a fifth of HalfCheetah's 50."""
WIDTH, HEIGHT = 400, 226
"""Of each agent's lane, in pixels."""


@dataclass(frozen=True)
class AnimateParams:
    """What is said of each agent, in the order of their lanes."""

    captions: tuple[Caption, ...]


@per_job
def animate(job: Job) -> None:
    """Draw a job's agents side by side, from the starts of their episodes on.

    Inputs: an `episode.safetensors` for each caption, by its label. The output gets `animation.mp4`, and
    `still.jpg`, its picture after a third of the time.

    Raises:
        UserError: an input holds no episode.
    """
    captions = job.params.captions
    episodes = [load_episode(job.inputs[caption.label]) for caption in captions]
    scene = SideBySide(episodes, captions, WIDTH, HEIGHT)
    write_video(job.output / VIDEO, scene.frames(SECONDS), scene.frames_per_second)
    third = min(scene.longest, round(SECONDS / scene.step_seconds)) // 3
    Image.fromarray(scene.draw(third)).save(job.output / STILL, quality=85)
