from typing import Literal

import torch

from singleshot.rl import scripts
from singleshot.rl.scripts import Agent as Agent
from singleshot.rl.scripts import Dataset as Dataset
from singleshot.rl.scripts import TrainableAgent as TrainableAgent

NAMES: tuple[str, ...]
__all__ = ("BC", "BCQ", "IQL", "TD3BC", "Agent", "Dataset", "TrainableAgent")

# Hyper-parameters are those of each algorithm's configuration, as tests/singleshot/rl/test_scripts.py checks.

class BC(scripts.BC):
    def __init__(
        self,
        data: Dataset,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
        learning_rate: float = 0.001,
        learning_rate_decay: bool = False,
        batch_size: int = 100,
        normalize_states: bool = False,
        hidden: tuple[int, int] = (750, 750),
        initialization: Literal["linear", "glorot"] = "linear",
        actor: Literal["vae", "mlp"] = "vae",
    ) -> None: ...

class BCQ(scripts.BCQ):
    def __init__(
        self,
        data: Dataset,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
        learning_rate: float = 0.001,
        learning_rate_decay: bool = False,
        batch_size: int = 100,
        normalize_states: bool = False,
        hidden: tuple[int, int] = (400, 300),
        initialization: Literal["linear", "glorot"] = "linear",
        vae_hidden: tuple[int, int] = (750, 750),
        discount: float = 0.99,
        tau: float = 0.005,
        lmbda: float = 0.75,
        phi: float = 0.05,
        target_samples: int = 10,
        evaluation_samples: int = 100,
    ) -> None: ...

class IQL(scripts.IQL):
    def __init__(
        self,
        data: Dataset,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
        learning_rate: float = 0.0003,
        learning_rate_decay: bool = False,
        batch_size: int = 256,
        normalize_states: bool = False,
        hidden: tuple[int, int] = (256, 256),
        initialization: Literal["linear", "glorot"] = "linear",
        discount: float = 0.99,
        tau: float = 0.005,
        expectile: float = 0.7,
        temperature: float = 3.0,
    ) -> None: ...

class TD3BC(scripts.TD3BC):
    def __init__(
        self,
        data: Dataset,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
        learning_rate: float = 0.0003,
        learning_rate_decay: bool = False,
        batch_size: int = 256,
        normalize_states: bool = True,
        hidden: tuple[int, int] = (256, 256),
        initialization: Literal["linear", "glorot"] = "linear",
        discount: float = 0.99,
        tau: float = 0.005,
        policy_noise: float = 0.2,
        noise_clip: float = 0.5,
        policy_delay: int = 2,
        alpha: float = 2.5,
    ) -> None: ...
