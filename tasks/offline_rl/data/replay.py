"""A dataset on the training device, and minibatches that are drawn uniformly from it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.offline_rl.data.normalization import Normalizer
from tasks.offline_rl.data.transitions import Transitions
from tasks.offline_rl.randomness import Randomness


@dataclass(frozen=True)
class Batch:
    """Transitions for K agents."""

    state: Tensor
    """(K, batch, state)"""
    action: Tensor
    """(K, batch, action)"""
    reward: Tensor
    """(K, batch)"""
    next_state: Tensor
    """(K, batch, state)"""
    not_done: Tensor
    """(K, batch): 0 where the next state is terminal, 1 elsewhere, including at time limits."""


class ReplayBuffer:
    """Transitions as single-precision tensors, with normalised states if `normalize_states` is true."""

    def __init__(self, transitions: Transitions, device: str = "cpu", normalize_states: bool = False) -> None:
        self.size = len(transitions)
        self.state = torch.from_numpy(transitions.observations).to(device)
        self.action = torch.from_numpy(transitions.actions).to(device)
        self.reward = torch.from_numpy(transitions.rewards).to(device)
        self.next_state = torch.from_numpy(transitions.next_observations).to(device)
        self.not_done = torch.from_numpy(~transitions.terminals).to(device, torch.float32)
        self.normalizer = Normalizer.of(self.state) if normalize_states else None
        if self.normalizer:
            self.state, self.next_state = self.normalizer(self.state), self.normalizer(self.next_state)

    def sample(self, randomness: Randomness, batch_size: int) -> Batch:
        """A minibatch for each seed, drawn with replacement."""
        i = randomness.integers(self.size, batch_size)  # (K, batch)
        return Batch(self.state[i], self.action[i], self.reward[i], self.next_state[i], self.not_done[i])
