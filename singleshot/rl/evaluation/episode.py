"""A recorded episode: enough data to draw it and to compute its return."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from singleshot.io.tensor_file import read_tensor_file, reading
from singleshot.rl.environments import TASKS, TIME_LIMIT, TaskName

FILE = "episode.safetensors"


@dataclass(frozen=True)
class Episode:
    """T steps of one agent."""

    task: TaskName
    positions: NDArray[np.float64]
    """MuJoCo's generalised positions `qpos` before the first step and after each: (T + 1, coordinates).
    Coordinate 0 is the torso's distance in metres."""
    rewards: NDArray[np.float64]
    """(T,)"""
    step_seconds: float

    @property
    def fell(self) -> bool:
        """Whether the episode ended before the time limit. HalfCheetah's episodes never do."""
        return len(self.rewards) < TIME_LIMIT

    @property
    def returns(self) -> NDArray[np.float64]:
        """The return so far, (T + 1,)."""
        return np.concatenate([[0.0], np.cumsum(self.rewards)])

    def save(self, path: Path) -> None:
        """Write as safetensors. Equal episodes give equal bytes."""
        description = json.dumps({"task": self.task, "step_seconds": self.step_seconds}, sort_keys=True)
        arrays = {"positions": self.positions, "rewards": self.rewards}
        safetensors.numpy.save_file(arrays, path, metadata={"episode": description})


def load_episode(path: Path) -> Episode:
    """Read what :meth:`Episode.save` wrote.

    Raises:
        UserError: the file is missing, damaged, or holds no episode.
    """
    fix = "make it with `dvc repro agents`"
    file = read_tensor_file(path, fix)
    with reading(path, "an agent's episode", fix):
        description = json.loads(file.metadata["episode"])
        positions, rewards = (file.tensors[name].numpy() for name in ("positions", "rewards"))
        task: TaskName = description["task"]
        return Episode(TASKS[task].name, positions, rewards, float(description["step_seconds"]))
