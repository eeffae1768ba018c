"""Episodes by a policy's exported graph, in place of PyTorch's network; all else is as in an evaluation."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.data.tensor_file import reading
from tasks.deployment.onnx_model import GraphCard, read_card
from tasks.deployment.sparse_policy import FastestPolicy
from tasks.errors import UserError
from tasks.offline_rl.algorithm import Algorithm
from tasks.offline_rl.environments import TASKS, EnvironmentVersion, MujocoTask, TaskName
from tasks.offline_rl.evaluation.play import EvaluationConfig, make_environments, play
from tasks.offline_rl.networks import DenseNetwork
from tasks.offline_rl.randomness import Randomness

MOST_LATENTS = 10**6
"""Of one state; BCQ's are 100 times 12 at most."""


@dataclass(frozen=True)
class OnnxPolicy:
    """A policy's graph where :func:`tasks.offline_rl.evaluation.play.play` takes an algorithm."""

    model: FastestPolicy
    task: MujocoTask
    noise_shape: tuple[int, ...]
    """Of one state's latents, e.g. (samples, latent size); () if the graph takes none."""

    def act(self, networks: Mapping[str, DenseNetwork], state: Tensor, noise: Tensor) -> Tensor:  # noqa: ARG002
        """Actions (1, batch, action) for `state` (1, batch, state) on `noise` (1, batch, *noise_shape).

        `networks` are ignored: the graph holds its own.
        """
        latents = {"latents": noise[0].numpy()} if self.noise_shape else {}
        action = self.model(state=state[0].numpy(), **latents)["action"]
        if action.shape != (state.shape[1], self.task.action_size) or not np.isfinite(action).all():
            name = self.model.card.cell
            raise UserError(f"{name}: its action isn't finite, or no {self.task.name}'s; export it again")
        return torch.from_numpy(action)[None]


def load_policy(path: Path, task: TaskName | None = None) -> OnnxPolicy:
    """Open a policy's graph; `task` is the one it is expected to be for, None is its own.

    Raises:
        UserError: the file is missing or damaged, holds no policy, or another task's.
    """
    card = read_card(path)
    if card.kind != "policy" or card.details.get("task") not in list(TASKS):
        raise UserError(f"{path}: a {card.kind}, not a policy of {', '.join(TASKS)}; give a policy's .onnx")
    if task not in (None, card.details["task"]):
        raise UserError(
            f"{path}: a policy for {card.details['task']}, not for {task}; leave --task out, or give {task}'s"
        )
    with reading(path, "a policy's graph", "export it again with `dvc repro export_onnx`"):
        if "action" not in card.outputs:
            raise ValueError("it has no output 'action'")
        return OnnxPolicy(FastestPolicy(path), TASKS[card.details["task"]], _noise_shape(card))


def _noise_shape(card: GraphCard) -> tuple[int, ...]:
    shapes = {each.name: each.shape for each in card.inputs}
    latents = shapes.get("latents", ("batch",))[1:]
    sizes = tuple(size if isinstance(size, int) else int(card.details[size]) for size in latents)
    if not all(1 <= size <= MOST_LATENTS for size in (*sizes, math.prod(sizes))):
        raise ValueError(f"latents of shape {sizes}")
    return sizes


def play_onnx(
    path: Path, episodes: int = 10, seed: int = 0, env_version: EnvironmentVersion = "v5"
) -> NDArray[np.float64]:
    """Undiscounted returns of an exported policy over some episodes; `seed` is that of its latents.

    Starts and latents are those of :func:`tasks.offline_rl.evaluation.play.evaluate`, and so are the states
    until rounding has grown: after some hundred steps of Hopper, some ten of HalfCheetah. From there on only
    the distribution is the same, which is all that PyTorch's float32 and float64 have in common too.

    Raises:
        UserError: see :func:`load_policy`.
    """
    policy = load_policy(path)
    environments = make_environments(policy.task, EvaluationConfig(episodes, env_version), agents=1)
    # All that `play` asks of an algorithm is `act` and `noise_shape`.
    returns = play(cast(Algorithm, policy), {}, environments, Randomness("evaluation", [seed]))
    return returns[0]
