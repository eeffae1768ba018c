"""A recorded episode: enough data to draw it and to compute its return."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from singleshot.io.tensor_file import read_tensor_file, reading
from singleshot.rl.environments import Environment, environment_in_file

FILE = "episode.safetensors"


@dataclass(frozen=True)
class PlayedEpisode:
    """T steps of one agent."""

    environment: Environment
    positions: NDArray[np.float64]
    """MuJoCo's generalised positions `qpos` before the first step and after each: (T + 1, coordinates).
    Coordinate 0 of a locomotion environment is the torso's distance in metres. There are no coordinates if
    MuJoCo doesn't simulate the environment."""
    rewards: NDArray[np.float64]
    """(T,)"""
    step_seconds: float
    fell: bool
    """Whether the environment ended the episode, not the time limit. HalfCheetah's episodes never do."""

    @property
    def returns(self) -> NDArray[np.float64]:
        """The return so far, (T + 1,)."""
        return np.concatenate([[0.0], np.cumsum(self.rewards)])

    def save(self, path: Path) -> None:
        """Write as safetensors. Equal episodes give equal bytes."""
        description = {
            "environment": asdict(self.environment),
            "step_seconds": self.step_seconds,
            "fell": self.fell,
        }
        arrays = {"positions": self.positions, "rewards": self.rewards}
        safetensors.numpy.save_file(
            arrays, path, metadata={"episode": json.dumps(description, sort_keys=True)}
        )


def load_episode(path: Path) -> PlayedEpisode:
    """Read what :meth:`PlayedEpisode.save` wrote.

    Raises:
        UserError: the file is missing, damaged, or holds no episode.
    """
    fix = "make it again"
    file = read_tensor_file(path, fix)
    with reading(path, "an agent's episode", fix):
        description = json.loads(file.metadata["episode"])
        positions, rewards = (file.tensors[name].numpy() for name in ("positions", "rewards"))
        environment = environment_in_file(description["environment"]) or Environment(None)
        step_seconds, fell = float(description["step_seconds"]), bool(description["fell"])
        return PlayedEpisode(environment, positions, rewards, step_seconds, fell)
