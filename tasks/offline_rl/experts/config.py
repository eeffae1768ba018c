"""How an expert is trained."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.offline_rl.environments import TaskName

HIDDEN = [256, 256]
"""Hidden layers of actor and critics."""


@dataclass(frozen=True)
class ExpertConfig:
    """How to train an expert; the card of a shipped one says what it was trained with."""

    task: TaskName
    output: Path
    """The safetensors file to write."""
    checkpoint_dir: Path
    """Where the run keeps its state, and goes on from."""
    steps: int = 2_000_000
    """Environment steps in all, those that fill the replay buffer included."""
    seed: int = 0
    algorithm: Literal["TQC", "TD3", "PPO"] = "TQC"
    """TQC is the one to begin with; PPO the one to go on with from a good policy."""
    start_from: Path | None = None
    """An expert to improve; else learning starts from random actions."""
    resume: bool = False
    """Go on from the last checkpoint in `checkpoint_dir`."""
    steps_per_update: int = 2
    """Environment steps per gradient update. On a CPU a step costs a twentieth of an update."""
    batch_size: int = 128
    learning_rate: float = 5e-4
    """TQC's and PPO's decays linearly to a tenth over the run."""
    initial_steps: int = 10_000
    """Steps before the actor's first update: random ones, or of the expert it starts from."""
    critic_warmup: int = 20_000
    """Updates of TQC's and TD3's critics alone before an expert they start from may change."""
    checkpoint_every: int = 50_000
    """Environment steps between two checkpoints."""
