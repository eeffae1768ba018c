"""What an algorithm is: networks, a loss for each of them, and a policy; for K agents at once.

Whatever else there is to do with an agent follows from these: `training` takes a step down each loss,
`prune_agent` asks which weights matter to it, `tasks.deployment` exports the policy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt
from torch import Tensor, nn

from tasks.offline_rl.architecture import Architecture
from tasks.offline_rl.data.replay import Batch
from tasks.offline_rl.networks import AnyNetwork
from tasks.offline_rl.randomness import Randomness

Loss = Callable[[AnyNetwork], Mapping[str, Tensor]]
"""The terms of a network's loss, by name, (K,) each: what is minimised is their sum."""
Perceptron = Callable[[str, Sequence[str]], nn.Module]
"""A trained agent's MLP, by its network and its layers, as a module (batch, in) → (batch, out)."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """The hyper-parameters that every algorithm has."""

    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Learning rate of Adam, for all networks."""
    learning_rate_decay: bool = False
    """Let it fall linearly, to 0 at the last update, which the paper doesn't."""
    batch_size: Annotated[int, Ge(1)] = 100
    """Transitions in the batch of an update."""
    normalize_states: bool = False
    """Train on states of zero mean and unit variance (see `normalization.py`), which the paper doesn't."""


class Policy(nn.Module):
    """A trained policy for one agent, from `state` (batch, state) and, if it takes any, normal `latents`."""

    outputs: ClassVar[tuple[str, ...]] = ("action",)
    """Names of what `forward` returns, first of all the actions (batch, action)."""


class Algorithm(ABC):
    """An algorithm for one size of states and actions. Networks and data are given to each method."""

    config_type: ClassVar[type[AlgorithmConfig]]

    def __init__(self, config: Any, state_size: int, action_size: int) -> None:
        """`config` is a `config_type`."""
        self.config = config
        self.state_size, self.action_size = state_size, action_size

    @property
    @abstractmethod
    def architectures(self) -> Mapping[str, Architecture]:
        """The networks."""

    @property
    def targets(self) -> Mapping[str, float]:
        """Networks that a slowly following copy is kept of, and τ, the fraction by which it follows."""
        return {}

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of the standard normal numbers that :meth:`act` takes for a state; () if it takes none."""
        return ()

    @property
    def target_samples(self) -> int:
        """Actions that an update looks at in each state at most, which decides the memory that it takes."""
        return 1

    @abstractmethod
    def losses(
        self,
        networks: Mapping[str, AnyNetwork],
        targets: Mapping[str, AnyNetwork],
        batch: Batch,
        randomness: Randomness,
    ) -> Iterator[tuple[str, Loss]]:
        """Each network with its loss, in the order of the update, as a function of that network alone.

        All else is fixed when the loss is asked for: training takes a network's step before it asks for the
        next one's loss, which may then depend on the network as it has become; pruning takes none.
        """

    @abstractmethod
    def act(self, networks: Mapping[str, AnyNetwork], state: Tensor, noise: Tensor) -> Tensor:
        """π(s): (K, batch, state) to (K, batch, action). `noise` is (K, batch, *noise_shape)."""

    @abstractmethod
    def policy(self, perceptron: Perceptron) -> Policy:
        """What :meth:`act` computes, for one agent, as a plain module to export."""
