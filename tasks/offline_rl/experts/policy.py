"""Expert policies: multilayer perceptrons shipped as small safetensors files, each with its model card."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from tasks.data.tensor_file import read_tensor_file, reading
from tasks.errors import UserError
from tasks.offline_rl.environments import TASKS

ACTION_NOISE = 0.1
"""Standard deviation of the Gaussian noise that makes a deterministic policy stochastic, as TD3 explores."""

Activation = Literal["relu", "tanh", "linear"]
_FUNCTIONS: Mapping[str, Callable[[NDArray], NDArray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "linear": lambda x: x,
}


@dataclass(frozen=True)
class Returns:
    """Undiscounted returns over a number of episodes."""

    mean: float
    std: float
    d4rl_score: float
    """Score of the mean return (:func:`tasks.offline_rl.environments.d4rl_score`)."""


@dataclass(frozen=True)
class ExpertCard:
    """Origin and measured returns of a policy."""

    task: str
    """Name in :data:`tasks.offline_rl.environments.TASKS`."""
    environment: str
    """Gymnasium identifier of the environment it was trained and measured in."""
    algorithm: str
    steps: int
    """Number of environment steps of its training, without those of the policy it was started from."""
    seed: int
    hyper_parameters: Mapping[str, float | int | str]
    episodes: int
    """Number of episodes in each of the two measurements. None of them was used to select this policy."""
    deterministic: Returns
    noisy: Returns
    """Returns with Gaussian noise of standard deviation :data:`ACTION_NOISE` on each action."""
    versions: Mapping[str, str]
    """Versions of the libraries that trained and measured it."""
    started_from: str | None = None
    """The policy that training improved; None if it began with random weights."""


@dataclass(frozen=True, eq=False)
class Expert:
    """A policy a = output(… activation(x W₀ + b₀) … W_L + b_L) with x = (s - mean) / std, a in [-1, 1]."""

    weights: tuple[NDArray[np.float32], ...]
    """W₀ … W_L, each (inputs, outputs)."""
    biases: tuple[NDArray[np.float32], ...]
    """b₀ … b_L, each (outputs,)."""
    observation_mean: NDArray[np.float32]
    """(S,)"""
    observation_std: NDArray[np.float32]
    """(S,)"""
    card: ExpertCard
    activation: Activation = "relu"
    output: Activation = "tanh"

    def act(self, observations: NDArray) -> NDArray[np.float32]:
        """Actions (n, A) in [-1, 1], float32, at `observations` (n, S)."""
        x = (observations.astype(np.float32) - self.observation_mean) / self.observation_std
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = _FUNCTIONS[self.activation](x @ weight + bias)
        return np.clip(_FUNCTIONS[self.output](x @ self.weights[-1] + self.biases[-1]), -1, 1)


def save_expert(expert: Expert, path: Path) -> None:
    """Write as safetensors with the card as JSON in its metadata, and in a readable file beside it.

    Equal experts give equal bytes.
    """
    tensors = {"observation_mean": expert.observation_mean, "observation_std": expert.observation_std}
    for i, (weight, bias) in enumerate(zip(expert.weights, expert.biases, strict=True)):
        tensors |= {f"weight_{i}": weight, f"bias_{i}": bias}
    # A single key, because safetensors writes the entries of its metadata in no fixed order.
    header = dataclasses.asdict(expert.card) | {"activation": expert.activation, "output": expert.output}
    arrays = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(arrays, path, metadata={"card": json.dumps(header, sort_keys=True)})
    path.with_suffix(".json").write_text(json.dumps(header, indent=2, sort_keys=True) + "\n")


def load_expert(path: Path) -> Expert:
    """Read what :func:`save_expert` wrote.

    Raises:
        UserError: the file is missing, truncated, or holds no policy for the task its card names.
    """
    fix = "get it again with `git checkout` or train it with `python -m pipelines train-expert`"
    file = read_tensor_file(path, fix)
    with reading(path, "an expert policy", fix):
        arrays = {name: tensor.numpy() for name, tensor in file.tensors.items()}
        expert = _from_tensors(arrays, json.loads(file.metadata["card"]))
        _check(expert, path, fix)
    return expert


def _from_tensors(tensors: Mapping[str, NDArray[np.float32]], header: dict) -> Expert:
    layers = range(sum(name.startswith("weight_") for name in tensors))
    activation, output = header.pop("activation"), header.pop("output")
    deterministic, noisy = Returns(**header.pop("deterministic")), Returns(**header.pop("noisy"))
    return Expert(
        weights=tuple(tensors[f"weight_{i}"] for i in layers),
        biases=tuple(tensors[f"bias_{i}"] for i in layers),
        observation_mean=tensors["observation_mean"],
        observation_std=tensors["observation_std"],
        card=ExpertCard(**header, deterministic=deterministic, noisy=noisy),
        activation=activation,
        output=output,
    )


def _check(expert: Expert, path: Path, fix: str) -> None:
    task = TASKS.get(expert.card.task)
    if task is None:
        raise UserError(
            f"{path}: made for the task {expert.card.task!r}, known are {', '.join(TASKS)}; {fix}"
        )
    if not {expert.activation, expert.output} <= set(_FUNCTIONS):
        raise UserError(
            f"{path}: activation {expert.activation!r}, output {expert.output!r}; known are "
            f"{', '.join(_FUNCTIONS)}; {fix}"
        )
    sizes = [task.observation_size, *(len(bias) for bias in expert.biases[:-1]), task.action_size]
    tensors = [expert.observation_mean, expert.observation_std, *expert.weights, *expert.biases]
    shapes: list[tuple[int, ...]] = [tensor.shape for tensor in tensors]
    expected: list[tuple[int, ...]] = [(sizes[0],)] * 2
    expected += [*itertools.pairwise(sizes), *((size,) for size in sizes[1:])]
    if shapes != expected:
        raise UserError(f"{path}: tensors of shapes {shapes}, {task.name} needs {expected}; {fix}")
    if not all(np.isfinite(tensor).all() for tensor in tensors):
        raise UserError(f"{path}: holds NaN or infinity; {fix}")
