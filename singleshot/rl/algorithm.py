"""What an algorithm is: networks, a loss for each network, and a policy, for K agents at once.

Everything else is derived from these: `training` minimises the losses, `prune_agent` scores weights with
them, and `singleshot.export` exports the policy. An algorithm's name is that of its module in `algorithms`,
and its class is the module's `ALGORITHM`.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from singleshot.errors import UserError, must_be
from singleshot.registry import modules_of
from singleshot.rl.actions import LARGEST
from singleshot.rl.data.replay import Batch, Randomness
from singleshot.rl.networks import AnyNetwork, Architecture, Initialization, Units

Loss = Callable[[AnyNetwork], Mapping[str, Tensor]]
"""Function from a network to the terms of its loss by name, (K,) each. Their sum is minimised; autograd
differentiates it unless the terms are :class:`~singleshot.rl.networks.Differentiated`."""
Schedule = Callable[[Tensor], Tensor]
"""Function from the fraction of all updates that were made to the factor of the learning rate."""
Perceptron = Callable[[str, Sequence[str]], nn.Module]
"""Function from the names of a network and its layers to a trained MLP (batch, in) → (batch, out)."""
Samples = Annotated[int, Ge(1), Le(65_536)]
"""A number of transitions or actions that are in memory together. A stranger's file may say it."""
MOST_UNITS = 2**26
"""Most outputs of a hidden layer that are computed at once, for the same reason: 256 MB of them."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """The hyper-parameters that every algorithm has."""

    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Learning rate of Adam, for all networks."""
    learning_rate_decay: bool = False
    """Whether the learning rate falls linearly, to 0 after the last update. The paper does not say."""
    batch_size: Samples = 100
    """Number of transitions in the batch of an update."""
    normalize_states: bool = False
    """Whether states are normalised to zero mean and unit variance (see `replay.py`).
    The paper does not say; BEAR's code does not normalise them, and the author's later code does."""
    hidden: Units = (256, 256)
    """Units of the two hidden layers of each network."""
    initialization: Initialization = "linear"
    """How initial weights are drawn: as `nn.Linear` does, or Glorot's, at which the authors of SNIP and GraSP
    score. Biases are drawn as `nn.Linear` does."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, float) and not abs(value) <= LARGEST:
                raise UserError(f"{name} is {value}; give a number within ±{LARGEST:g}")
        wanted = f"smaller batches or layers, so that the product is at most {MOST_UNITS:,}"
        must_be(wanted, self.most_units <= MOST_UNITS, samples_times_units=self.most_units)

    @property
    def most_units(self) -> int:
        """Largest number of outputs of a hidden layer that are computed at once."""
        return self.batch_size * max(self.hidden)


class Policy(nn.Module):
    """One agent's trained policy. Inputs: `state` (batch, state) and, if it takes any, normal `latents`."""

    outputs: ClassVar[tuple[str, ...]] = ("action",)
    """Names of the outputs of `forward`. The first output is the actions (batch, action)."""

    def candidates(self, *inputs: Tensor) -> tuple[Tensor, Tensor] | None:  # noqa: ARG002
        """The actions of which the policy takes the one of the highest value, and their values.

        They are (batch, samples, action) and (batch, samples). The index of the action taken is the output
        `choice`. None if the policy does not choose.
        """
        return None


class Algorithm(ABC):
    """An algorithm for fixed state and action sizes. Networks and data are arguments of its methods."""

    config_type: ClassVar[type[AlgorithmConfig]]
    delayed: ClassVar[tuple[str, ...]] = ()
    """Names of the networks that are updated in every d-th update only, see :attr:`delay`."""

    def __init__(self, config: Any, state_size: int, action_size: int) -> None:
        """`config` is an instance of `config_type`."""
        self.config = config
        self.state_size, self.action_size = state_size, action_size

    @property
    @abstractmethod
    def architectures(self) -> Mapping[str, Architecture]:
        """Architecture of each network, by name."""

    @property
    def targets(self) -> Mapping[str, float]:
        """τ of each network with a target network: the fraction by which the target follows per update."""
        return {}

    @property
    def delay(self) -> int:
        """d: in every d-th update only, the networks in `delayed` and all target networks are updated."""
        return 1

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """Schedules of the networks whose learning rate is not constant, by network."""
        decay = self.config.learning_rate_decay
        return dict.fromkeys(self.architectures, lambda done: 1 - done) if decay else {}

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of the standard normal numbers that :meth:`act` takes per state; () if it takes none."""
        return ()

    @abstractmethod
    def losses(
        self,
        networks: Mapping[str, AnyNetwork],
        targets: Mapping[str, AnyNetwork],
        batch: Batch,
        randomness: Randomness,
    ) -> Iterator[tuple[str, Loss]]:
        """Yield each network's name and loss, a function of that network alone, in the order of the update.

        Everything else is fixed when a loss is yielded. Training updates a network before it requests the
        next loss, which may therefore depend on the updated network. Losses of `delayed` networks are yielded
        in every update, but computed in every d-th only. Pruning makes no updates in between.
        """

    @abstractmethod
    def act(self, networks: Mapping[str, AnyNetwork], state: Tensor, noise: Tensor) -> Tensor:
        """π(s): (K, batch, state) to (K, batch, action). `noise` is (K, batch, *noise_shape)."""

    @abstractmethod
    def policy(self, perceptron: Perceptron) -> Policy:
        """One agent's policy as a plain module to export, which computes the same as :meth:`act`."""


ALGORITHMS = modules_of("singleshot.rl.algorithms")
"""The modules of all algorithms, by name."""


def module_of(name: str) -> str:
    """Full name of the module of the algorithm `name`. Raises UserError if there is no such algorithm."""
    if name not in ALGORITHMS:
        raise UserError(f"no algorithm {name!r}; known are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def algorithm_class(name: str) -> type[Algorithm]:
    """The class of the algorithm `name`. Raises UserError if there is no such algorithm."""
    found: type[Algorithm] = importlib.import_module(module_of(name)).ALGORITHM
    return found
