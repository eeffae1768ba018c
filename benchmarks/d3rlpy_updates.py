"""Updates per second of BCQ and BC here and in d3rlpy: `make peers && python -m benchmarks.d3rlpy_updates`.

Both run on the same PyTorch, on one thread, with HalfCheetah's sizes and the same networks: 400-300 for actor
and critics, 750-750 for the VAE, batches of 100, 10 actions for the target, a step of each network in each
update, no scalers. d3rlpy gets its minibatch as tensors, whereas each update here draws one; `with its
buffer` is d3rlpy as its `fit` runs it, but without logging.

GFLOP are those of an update's dense products, as PyTorch counts them (`torch.utils.flop_counter`). d3rlpy's
BCQ has more because it also differentiates the actor's loss by the weights of the VAE and the critics, and
evaluates the second critic for this loss, none of which is used. d3rlpy's own BC is a plain MLP, so our
BC is compared with the step in which d3rlpy's BCQ trains the VAE; BEAR's BC consists of this step alone.
"""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.agents import CONFIGS, SPACES, random_transitions, updating
from benchmarks.command import run_main
from benchmarks.paired import heading, table, take_turns
from singleshot.errors import UserError
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.rl.data.replay import ReplayBuffer
from singleshot.rl.data.transitions import Transitions
from singleshot.rl.vae import WIDTH

PEERS = Path("build/peers")
UPDATES: dict[str, int] = {"bcq": 10, "bc": 30}
"""Number of updates in a turn: half a second for d3rlpy."""
SPARSITIES = {"dense": 0.0, "90%": 0.9, "95%": 0.95}
PEER, PEER_WITH_BUFFER = "d3rlpy", "d3rlpy with its buffer"
Variants = dict[tuple[str, str], Callable[[], None]]


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None).parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as in training
    transitions = random_transitions(10_000)
    variants = _peer(transitions) | _ours(ReplayBuffer(transitions))
    compared = take_turns(variants)
    print(heading("torch", "d3rlpy"))
    rows = []
    for variant, run in variants.items():
        algorithm, _ = variant
        seconds, gflop = compared.seconds(variant), _flop(run) / UPDATES[algorithm] / 1e9
        rows.append(
            (
                *variant,
                f"{UPDATES[algorithm] / seconds.wall:.1f}",
                f"{1000 * seconds.cpu / UPDATES[algorithm]:.2f}",
                compared.speedup(variant, (algorithm, PEER)),
                compared.speedup(variant, (algorithm, PEER), of="cpu"),
                f"{gflop:.2f}" if gflop else "",
            )
        )
    columns = ("algorithm", "", "updates/s", "CPU ms", "times d3rlpy", "the same by CPU time", "GFLOP")
    print(table(columns, sorted(rows)))
    print(f"\n{compared.remark}")


def _ours(data: ReplayBuffer) -> Variants:
    return {
        (algorithm, f"here, {name}"): updating(algorithm, sparsity, data, updates)
        for algorithm, updates in UPDATES.items()
        for name, sparsity in SPARSITIES.items()
    }


def _peer(transitions: Transitions) -> Variants:
    d3rlpy = _import_d3rlpy()
    ours = CONFIGS["bcq"]
    assert isinstance(ours, BCQConfig)
    hidden = d3rlpy.models.VectorEncoderFactory
    bcq = d3rlpy.algos.BCQConfig(
        batch_size=ours.batch_size,
        n_action_samples=ours.target_samples,
        actor_encoder_factory=hidden(hidden_units=[400, 300]),
        critic_encoder_factory=hidden(hidden_units=[400, 300]),
        imitator_encoder_factory=hidden(hidden_units=[WIDTH, WIDTH]),
    ).create(device=False)
    bcq.create_impl((SPACES.observation_size,), SPACES.action_size)
    buffer = d3rlpy.dataset.MDPDataset(
        transitions.observations,
        transitions.actions,
        transitions.rewards[:, None],
        terminals=np.zeros(len(transitions), np.float32),
        timeouts=(np.arange(1, len(transitions) + 1) % 1000 == 0).astype(np.float32),
    )
    batch = d3rlpy.torch_utility.TorchMiniBatch.from_batch(
        batch=buffer.sample_transition_batch(ours.batch_size),
        gamma=ours.discount,
        compute_returns_to_go=False,
        device="cpu",
    )
    return {
        ("bcq", PEER): _repeat("bcq", lambda: bcq.impl.update(batch, grad_step=0)),
        ("bcq", PEER_WITH_BUFFER): _repeat(
            "bcq", lambda: bcq.update(buffer.sample_transition_batch(ours.batch_size))
        ),
        ("bc", PEER): _repeat("bc", lambda: bcq.impl.update_imitator(batch)),
    }


def _import_d3rlpy() -> Any:
    sys.path.append(str(PEERS))
    try:
        import d3rlpy
        import structlog
    except ImportError as error:
        raise UserError(f"{PEERS}: {error}; install it by `make peers`") from error
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return d3rlpy


def _repeat(algorithm: str, update: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(UPDATES[algorithm]):
            update()

    return run


def _flop(run: Callable[[], None]) -> int:
    """Operations of dense matrix products, where a multiplication and an addition count as two operations."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


if __name__ == "__main__":
    run_main(main)
