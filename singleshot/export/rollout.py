"""Episodes with a policy's exported graph instead of PyTorch's network; all else is as in an evaluation."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor

from singleshot.errors import UserError, explained
from singleshot.io.onnx_model import OnnxModel, load_onnx, unbatched_shapes
from singleshot.rl.actions import ActionBounds
from singleshot.rl.algorithm import Algorithm
from singleshot.rl.data.replay import Randomness
from singleshot.rl.environments import Environment, environment_in_file
from singleshot.rl.evaluation.play import Environments, play
from singleshot.rl.networks import DenseNetwork


@dataclass(frozen=True)
class OnnxPolicy:
    """A policy's graph, for use as the algorithm of :func:`singleshot.rl.evaluation.play.play`."""

    model: OnnxModel
    environment: Environment | None
    """The environment for which it was trained."""
    bounds: ActionBounds
    """The actions that -1 and 1 stand for in training."""
    state_size: int
    noise_shape: tuple[int, ...]
    """Shape of one state's latents, e.g. (samples, latent size); () if the graph takes none."""

    def act(self, networks: Mapping[str, DenseNetwork], state: Tensor, noise: Tensor) -> Tensor:  # noqa: ARG002
        """Actions (1, batch, action) for `state` (1, batch, state) and `noise` (1, batch, *noise_shape).

        `networks` is ignored, as the graph contains the network.
        """
        latents = {"latents": noise[0].numpy()} if self.noise_shape else {}
        shape = (state.shape[1], len(self.bounds.low))
        action = self.model.compute("action", shape, state=state[0].numpy(), **latents)
        return torch.from_numpy(self.bounds.to_unit(action)).float()[None]


def load_policy(path: Path) -> OnnxPolicy:
    """Open a policy's graph.

    Raises:
        UserError: the file is missing or damaged, or holds no policy.
    """
    model = load_onnx(path, threads=1)
    card = model.card
    if card.kind != "policy":
        raise UserError(f"{path}: a {card.kind}, not a policy; give a policy's .onnx")
    with explained(f"{path}: not a policy's graph", "export it again"):
        bounds = TypeAdapter(ActionBounds | None).validate_python(card.details["bounds"])
        shapes = unbatched_shapes(card.inputs, card.details)
        (state_size,) = shapes["state"]
        return OnnxPolicy(
            model,
            environment_in_file(card.details["environment_spec"]),
            bounds or ActionBounds.unit(card.details["action_size"]),
            state_size,
            shapes.get("latents", ()),
        )


def play_onnx(
    path: Path, environment: Environment | None = None, episodes: int = 10, seed: int = 0
) -> NDArray[np.float64]:
    """Undiscounted returns of an exported policy over some episodes; `seed` is the seed of its latents.

    `environment` is by default the one for which the policy was trained.

    Initial states and latents are the same as in :func:`singleshot.rl.evaluation.play.evaluate`. Later
    states are the same until rounding errors have grown, after some hundred steps of Hopper or some ten of
    HalfCheetah. From there on, only the distribution is the same, as is the case for PyTorch's float32 and
    float64, too.

    Raises:
        UserError: see :func:`load_policy`.
    """
    policy = load_policy(path)
    environment = environment or policy.environment
    if environment is None:
        raise UserError(f"{path}: doesn't say for which environment it was trained; give --environment")
    environments = Environments(environment, 1, episodes)
    environments.check(policy.state_size, len(policy.bounds.low))
    # `play` uses only `act` and `noise_shape` of an algorithm.
    randomness = Randomness("evaluation", [seed])
    returns = play(cast(Algorithm, policy), {}, environments, randomness, bounds=policy.bounds)
    return returns[0]
