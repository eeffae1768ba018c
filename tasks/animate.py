"""Task: one video of the scored episodes of several agents, side by side and in step."""

from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Gt
from PIL import Image

from singleshot.job import Job, per_job
from singleshot.rl.environments import Environment
from singleshot.rl.evaluation.drawing import Caption, SideBySide, write_video
from singleshot.rl.evaluation.episode import load_episode

VIDEO, STILL = "animation.mp4", "still.jpg"
WIDTH, HEIGHT = 400, 226
"""Size of each agent's lane, in pixels."""


@dataclass(frozen=True)
class AnimateParams:
    """What is shown of which episodes."""

    environment: Environment
    captions: tuple[Caption, ...]
    """Captions of the agents, in the order of their lanes."""
    seconds: Annotated[float, Gt(0)]
    """Seconds of the episodes that are shown: Hopper's and Walker2d's last 8, HalfCheetah's 50."""


@per_job
def animate(job: Job) -> None:
    """Draw a job's agents side by side, from the start of their episodes.

    Inputs: an `episode.safetensors` for each caption, by the caption's label. The output gets
    `animation.mp4`, and `still.jpg`, the frame after a third of the time.

    Raises:
        UserError: an input holds no episode.
    """
    captions, seconds = job.params.captions, job.params.seconds
    # The environment is the configuration's, because those in files may not import a module.
    episodes = [
        replace(load_episode(job.inputs[caption.label]), environment=job.params.environment)
        for caption in captions
    ]
    scene = SideBySide(episodes, captions, WIDTH, HEIGHT)
    write_video(job.output / VIDEO, scene.frames(seconds), scene.frames_per_second)
    third = min(scene.longest, round(seconds / scene.step_seconds)) // 3
    Image.fromarray(scene.draw(third)).save(job.output / STILL, quality=85)
