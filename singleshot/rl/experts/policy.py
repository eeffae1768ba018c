"""Expert policies: multilayer perceptrons shipped as small safetensors files, each with its model card."""

import dataclasses
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import TypeAdapter

from singleshot.errors import explained
from singleshot.io.tensor_file import read_tensor_file
from singleshot.rl.environments import LOCOMOTION

ACTION_NOISE = 0.1
"""Standard deviation of the Gaussian noise that makes a deterministic policy stochastic, as TD3 explores."""

GRID = 2.0**-18
"""The grid to which weights, states and hidden units are rounded in :meth:`Expert.act`."""


@dataclass(frozen=True)
class Returns:
    """Undiscounted returns over a number of episodes."""

    mean: float
    std: float
    d4rl_score: float
    """Score of the mean return (:meth:`singleshot.rl.environments.Environment.score`)."""


@dataclass(frozen=True)
class ExpertCard:
    """Origin and measured returns of a policy."""

    environment: str
    """Name in :data:`singleshot.rl.environments.LOCOMOTION`."""
    environment_id: str
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
    """A policy a = tanh(… relu(s W₀ + b₀) … W_L + b_L) of states s that are not normalised."""

    weights: tuple[NDArray[np.float32], ...]
    """W₀ … W_L, each (inputs, outputs)."""
    biases: tuple[NDArray[np.float32], ...]
    """b₀ … b_L, each (outputs,)."""
    card: ExpertCard

    def act(self, observations: NDArray) -> NDArray[np.float64]:
        """Actions (n, A) in [-1, 1] at `observations` (n, S).

        Weights, states and hidden units are multiples of :data:`GRID`. In double precision, sums of their
        products are exact up to 2¹⁷, so a matrix product is the same number on every processor, whatever the
        order, number of threads or fused operations of its sums. Only tanh rounds differently elsewhere, in
        its last bits; :mod:`~singleshot.rl.experts.collect` rounds these off.
        """
        x = _on_grid(observations)
        *hidden, (weight, bias) = self._layers
        for hidden_weight, hidden_bias in hidden:
            x = _on_grid(np.maximum(x @ hidden_weight + hidden_bias, 0))
        return np.tanh(x @ weight + bias)

    @cached_property
    def _layers(self) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Weights and biases on the grid."""
        return [
            (_on_grid(weight), _on_grid(bias)) for weight, bias in zip(self.weights, self.biases, strict=True)
        ]


def _on_grid(values: NDArray) -> NDArray[np.float64]:
    """The multiples of :data:`GRID` that are nearest to `values`."""
    return np.rint(np.asarray(values, np.float64) / GRID) * GRID


def save_expert(expert: Expert, path: Path) -> None:
    """Write as safetensors with the card as JSON in its metadata, and in a readable file beside it.

    Equal experts give equal bytes.
    """
    arrays = {
        f"{kind}_{i}": np.ascontiguousarray(array, np.float32)
        for kind, of_layers in (("weight", expert.weights), ("bias", expert.biases))
        for i, array in enumerate(of_layers)
    }
    # A single key, because safetensors writes the entries of its metadata in no fixed order.
    header = dataclasses.asdict(expert.card)
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file(arrays, path, metadata={"card": json.dumps(header, sort_keys=True)})
    path.with_suffix(".json").write_text(
        json.dumps(header, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )


def load_expert(path: Path) -> Expert:
    """Read what :func:`save_expert` wrote.

    Raises:
        UserError: the file is missing or truncated, or holds no expert's policy.
    """
    fix = "get it again with `git checkout` or train it with `python -m experts.train`"
    file = read_tensor_file(path, fix)
    with explained(f"{path}: not an expert policy", fix):
        arrays = {name: tensor.numpy() for name, tensor in file.tensors.items()}
        card = TypeAdapter(ExpertCard).validate_json(file.metadata["card"])
        layers = range(sum(name.startswith("weight_") for name in arrays))
        weights, biases = (tuple(arrays[f"{kind}_{i}"] for i in layers) for kind in ("weight", "bias"))
        sizes = [len(weights[0]), *map(len, biases)]
        if card.environment not in LOCOMOTION:
            raise ValueError(f"for {card.environment!r}, not {[*LOCOMOTION]}")
        if [weight.shape for weight in weights] != [*itertools.pairwise(sizes)]:
            raise ValueError("layers that don't fit")
        if not all(np.isfinite(array).all() for array in (*weights, *biases)):
            raise ValueError("NaN or infinity")
        return Expert(weights, biases, card)
