"""Why SNIP keeps more of the last layers than GraSP: `python -m benchmarks.last_layers DATA…`.

SNIP ranks weights by a magnitude, |θ ⊙ ∂L/∂θ|; GraSP by θ ⊙ Hg with its sign. The table has the percentage of
its weights that each part's last layer keeps at 95 % sparsity under both, and under GraSP's score without its
sign, |θ ⊙ Hg|. DATA are draws in directories named after their environments; `dvc repro data` makes them
for the environments in params.yaml.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.command import run_main
from benchmarks.paired import heading, print_table
from singleshot.pruning.masks import PruningConfig
from singleshot.pruning.objective import Objective, Scores, Weights
from singleshot.pruning.pruner import ScoreFunction
from singleshot.pruning.pruners.grasp import grasp
from singleshot.rl.algorithms.bcq import BCQ, BCQConfig
from singleshot.rl.data.replay import ReplayBuffer
from singleshot.rl.data.transitions import Transitions
from singleshot.rl.pruning import make_masks

LAST = {"actor": ("actor", "pi.2"), "critic": ("critic", "q1.2"), "decoder": ("vae", "decoder.2")}
"""The network of each part, and the last layer's name."""
SEEDS = range(5)


def unsigned(objective: Objective, weights: Weights) -> Scores:
    """|θ ⊙ Hg|: the magnitude of GraSP's score."""
    return {layer: score.abs() for layer, score in grasp(objective, weights).items()}


PRUNERS: dict[str | ScoreFunction, int] = {"snip": 100, "grasp": 200, unsigned: 200}
"""Pruners, and the papers' numbers of transitions to score with."""


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "data", nargs="+", type=Path, metavar="DATA", help="e.g. data/offline_rl/HalfCheetah/draw-0"
    )
    data = parser.parse_args().data
    print(heading("torch"))
    print_table(("environment", "last layer of BCQ's", "SNIP", "GraSP", "GraSP without sign"), _rows(data))


def _rows(data: list[Path]) -> Iterator[tuple[object, ...]]:
    for directory in data:
        transitions = Transitions.load(directory / "transitions.safetensors")
        algorithm = BCQ(BCQConfig(), transitions.state_size, transitions.action_size)
        buffer = ReplayBuffer(transitions)
        kept = [_kept(algorithm, pruner, size, buffer) for pruner, size in PRUNERS.items()]
        for part in LAST:
            yield directory.parent.name, part, *(f"{own[part]:.1f}" for own in kept)


def _kept(algorithm: BCQ, pruner: str | ScoreFunction, size: int, data: ReplayBuffer) -> Mapping[str, float]:
    """Percentage of its weights that each last layer keeps, as the mean over seeds."""
    config = PruningConfig(batch_size=size)
    masks = [make_masks(algorithm, data, pruner, 0.95, seed, config) for seed in SEEDS]
    return {
        part: 100 * sum(float(own[network][layer].float().mean()) for own in masks) / len(masks)
        for part, (network, layer) in LAST.items()
    }


if __name__ == "__main__":
    run_main(main)
