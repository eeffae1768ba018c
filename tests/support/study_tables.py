"""Tables as `python -m pipelines study` leaves them, of made-up agents."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pandas

ENVIRONMENTS = ("HalfCheetah", "Hopper")
MAX_RETURNS = {"HalfCheetah": 12000.0, "Hopper": 3000.0}
LAYERS = {
    "vae": {"encoder": ("encoder.0", "mean"), "decoder": ("decoder.0", "decoder.2")},
    "actor": {"actor": ("pi.0", "pi.2")},
    "critic": {"critic 1": ("q1.0", "q1.2"), "critic 2": ("q2.0", "q2.2")},
}
LEVELS = {"dense": 90, "snip": 88, "grasp": 50, "snip-shuffled": 60, "grasp-shuffled": 49, "random": 20}
"""Around which the scores of agents lie, so that SNIP performs like dense agents and GraSP does not."""
UPDATES = {"bc": 40, "bcq": 20}
EPISODES = 16
SHIFTS = (-4, -2, 0, 2, 4)
"""Of an agent's last evaluations from their mean."""


def write_tables(directory: Path, seeds: int) -> None:
    """`scores.csv`, `layers.csv` and `runs.csv`; of seed 0 dense agents with twice as many updates too."""
    random = np.random.default_rng(0)
    scores, layers, runs = [], [], []
    for agent in _agents(seeds):
        scores += _scores(agent, final=LEVELS[agent["pruner"]] + random.normal(0, 2))
        layers += _layers(agent) if agent["pruner"] != "dense" else []
        made = {"commit": "c0ffee", "processor": "a processor", "seconds": 60.0, "finished": "2026-01-01"}
        runs.append(agent | made)
    directory.mkdir(parents=True, exist_ok=True)
    for name, rows in (("scores", scores), ("layers", layers), ("runs", runs)):
        pandas.DataFrame(rows).to_csv(directory / f"{name}.csv", index=False)


def _scores(agent: dict, final: float) -> list[dict]:
    """Six evaluations: the first is of no account, and the mean of the others is `final`."""
    return [
        agent
        | {
            "update": agent["updates"] * number // 10,
            "return_mean": score * MAX_RETURNS[agent["environment"]] / 100,
            "return_std": 100.0,
            "d4rl_score": score,
            "episodes": EPISODES,
        }
        for number, score in zip(range(5, 11), [0.0, *(final + shift for shift in SHIFTS)], strict=True)
    ]


def _states(agent: dict, layer: str) -> dict:
    """First layers read 11 coordinates of the state; of them GraSP keeps as many as the seed is."""
    if not layer.endswith(".0"):
        return {"states_total": None, "states_kept": None}
    return {"states_total": 11, "states_kept": agent["seed"] if agent["pruner"] == "grasp" else 11}


def _layers(agent: dict) -> list[dict]:
    """Of each part's 2,000 weights 100 are kept: GraSP keeps 30 of the last layer's, all others 40."""
    last = 30 if agent["pruner"] == "grasp" else 40
    networks = LAYERS if agent["algorithm"] == "bcq" else {"vae": LAYERS["vae"]}
    return [
        agent
        | {"network": network, "part": part, "layer": layer, "weights_total": 1000, "weights_kept": kept}
        | _states(agent, layer)
        for network, parts in networks.items()
        for part, names in parts.items()
        for layer, kept in zip(names, (100 - last, last), strict=True)
    ]


def _agents(seeds: int) -> Iterator[dict]:
    for seed, environment, algorithm in product(range(seeds), ENVIRONMENTS, UPDATES):
        updates = UPDATES[algorithm]
        yield _agent(updates, environment, algorithm, "dense", seed)
        if seed == 0:
            yield _agent(2 * updates, environment, algorithm, "dense", seed)
        for scope, pruner in product(("part", "network"), LEVELS):
            if pruner != "dense":
                yield _agent(updates, environment, algorithm, pruner, seed, scope)


def _agent(updates: int, environment: str, algorithm: str, pruner: str, seed: int, scope: str = "") -> dict:
    """The columns of an agent; of a dense one, `scope` is empty."""
    return {
        "updates": updates,
        "normalize_states": False,
        "batch_size": 100,
        "data_seed": "shared",
        "failed_episodes": "",
        "scope": scope,
        "pruning_batch_size": (200 if pruner.startswith("grasp") else 100) if scope else "",
        "pruning_iterations": 1 if scope else "",
        "pruning_normalize_states": False if scope else "",
        "environment": environment,
        "algorithm": algorithm,
        "pruner": pruner,
        "sparsity": 0.95 if scope else 0.0,
        "seed": seed,
    }
