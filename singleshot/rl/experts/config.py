"""How an expert is trained."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ExpertName = Literal["HalfCheetah", "Hopper", "Walker2d"]
"""The names in `singleshot.rl.environments.LOCOMOTION`."""
HIDDEN = [256, 256]
"""Widths of the hidden layers of actor and critics."""


@dataclass(frozen=True)
class ExpertConfig:
    """How to train an expert; the card of a shipped expert has the settings it was trained with."""

    environment: ExpertName
    output: Path
    """The safetensors file to write."""
    checkpoint_dir: Path
    """Directory in which the run keeps its state, and from which it can be resumed."""
    steps: int = 2_000_000
    """Total number of environment steps, including those that fill the replay buffer."""
    seed: int = 0
    algorithm: Literal["TQC", "TD3", "PPO"] = "TQC"
    """Algorithm: TQC to begin with, PPO to continue from a good policy."""
    start_from: Path | None = None
    """Expert to improve; without one, learning starts from random actions."""
    resume: bool = False
    """Whether to resume from the last checkpoint in `checkpoint_dir`."""
    steps_per_update: int = 2
    """Number of environment steps per gradient update. On a CPU, a step costs a twentieth of an update."""
    batch_size: int = 128
    learning_rate: float = 5e-4
    """Learning rate. For TQC and PPO, it decays linearly to a tenth over the run."""
    initial_steps: int = 10_000
    """Number of environment steps before the actor's first update: random steps, or steps of `start_from`."""
    critic_warmup: int = 20_000
    """Number of updates of TQC's or TD3's critics alone, before the actor of `start_from` may change."""
    checkpoint_every: int = 50_000
    """Number of environment steps between two checkpoints."""
