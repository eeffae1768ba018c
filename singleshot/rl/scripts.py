"""Offline RL on your own data: what `singleshot.rl` offers to a script or a notebook.

>>> import numpy as np
>>> import singleshot
>>> draw = np.random.default_rng(0)
>>> states, actions = draw.normal(size=(501, 4)), draw.uniform(-2, 2, (500, 2))
>>> data = singleshot.rl.Dataset(states[:-1], actions, draw.normal(size=500), states[1:], np.zeros(500))
>>> agent = singleshot.rl.BC(data, batch_size=50).prune("snip", 0.95).fit(updates=20, progress=False)
>>> round(agent.sparsity, 3)
0.95
>>> agent.act(states[0]).shape
(2,)

Agents are those of :mod:`singleshot.rl`, one at a time: the same seed, data and settings give the same agent
as in a sweep.
"""

from __future__ import annotations  # `help` shows names of types, such as ArrayLike, not what they stand for

import dataclasses
import logging
import tempfile
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from tqdm.auto import tqdm

from singleshot.errors import UserError, explained, shown

try:
    import gymnasium
except ImportError as error:
    raise UserError(
        f"singleshot.rl needs more packages ({error}): pip install '.[rl]' in the checkout"
    ) from error

from singleshot.arguments import Count, Seed, checked, settings
from singleshot.io.tensor_file import writing
from singleshot.pruning.dynamic import METHODS
from singleshot.pruning.masks import LayerCount, PruningConfig, check_sparsity
from singleshot.pruning.pruner import ScoreFunction, name_of
from singleshot.pruning.variant import DENSE
from singleshot.rl import agents, pruning, shipped
from singleshot.rl.actions import LARGEST, TOLERANCE, ActionBounds
from singleshot.rl.agents import AgentSpec
from singleshot.rl.algorithm import algorithm_class
from singleshot.rl.data.arrays import Doubts, check_each, check_steps, largest, numbers
from singleshot.rl.data.d4rl import read_d4rl
from singleshot.rl.data.minari import fetch_minari, local_minari, read_minari
from singleshot.rl.data.replay import Randomness, ReplayBuffer
from singleshot.rl.data.transitions import ARRAYS, Transitions
from singleshot.rl.environments import Environment, known_spaces, playing
from singleshot.rl.evaluation.play import FIRST_EPISODE, evaluate
from singleshot.rl.networks import AnyNetwork
from singleshot.rl.training.stack import CHECK_EVERY, Member, Stack, flushed_denormals

OWN_DATA = "data"
"""Name of the environment in the specification of an agent that was trained on one's own data."""
logger = logging.getLogger(__name__)

RECORDS = 100
"""Number of records of the losses in a training."""
Reached = tuple[dict[str, torch.Tensor], list[dict[str, float]]]
"""The state of a stack of one agent, and the records of its losses."""


class Dataset:
    """Transitions (s, a, r, s', terminal), in any order and of any range.

    The arrays are copied. Doubtful values that can still be used are logged in one line.

    Args:
        observations: s, (N, S), or (N,) for real numbers.
        actions: a, (N, A), or (N,) for real numbers.
        rewards: r, (N,) or (N, 1).
        next_observations: s', as `observations`.
        terminals: (N,) or (N, 1), true or 1 where s' ends an episode, so that no reward follows; not for time
            limits.
        action_low: lowest value of each coordinate of an action that agents may take, (A,) or one number.
        action_high: highest value.

    Agents know actions as numbers from -1 to 1, which stand for `action_low` and `action_high`. If these are
    not given, actions within [-1, 1] stay as they are, and other actions are scaled from the lowest and the
    highest value of each coordinate in the data.

    Raises:
        UserError: shapes don't match, there is no transition, or there are NaN, infinity, masked or too large
            numbers, actions out of bounds or terminals other than 0 and 1.
    """

    def __init__(
        self,
        observations: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        next_observations: ArrayLike,
        terminals: ArrayLike,
        *,
        action_low: ArrayLike | None = None,
        action_high: ArrayLike | None = None,
    ) -> None:
        given = zip(ARRAYS, (observations, actions, rewards, next_observations, terminals), strict=True)
        arrays = check_steps(dict(given), "Dataset", None)
        made = Transitions.cast(*(np.array(arrays[name], order="C") for name in ARRAYS))
        doubts = Doubts("Dataset")
        doubts.check_rows(made.observations, made.actions, made.rewards, made.terminals, known=False)
        if made.actions.size:
            bounds = _bounds(made.actions, action_low, action_high)
            scaled = np.asarray(bounds.to_unit(made.actions), np.float32)
            made = dataclasses.replace(made, actions=scaled, bounds=None if bounds.is_unit else bounds)
        self.transitions = made.check("Dataset")
        doubts.told()

    @classmethod
    def d4rl(cls, path: str | Path) -> Self:
        """The transitions of an HDF5 file as D4RL's: `observations`, `actions`, `rewards`, `terminals`.

        Raises:
            UserError: the file can't be read, lacks one of these, or has what a dataset can't have.
        """
        return cls._of(read_d4rl(Path(path)).transitions)

    @classmethod
    def minari(cls, name: str | Path) -> Self:
        """The transitions of a Minari dataset, by its folder, or by its id, which is fetched if needed.

        Raises:
            UserError: it can't be fetched or read, or has what a dataset can't have.
        """
        if kept := local_minari(str(name)):
            return cls._of(read_minari(kept).transitions)
        with tempfile.TemporaryDirectory() as directory:
            return cls._of(read_minari(fetch_minari(str(name), Path(directory))).transitions)

    @classmethod
    def _of(cls, transitions: Transitions) -> Self:
        made = cls.__new__(cls)
        made.transitions = transitions
        return made

    def __len__(self) -> int:
        """Number of transitions."""
        return len(self.transitions)

    def __repr__(self) -> str:
        """The dataset's sizes."""
        states, actions = self.transitions.state_size, self.transitions.action_size
        return f"Dataset({len(self):,} transitions, states of {states} numbers, actions of {actions})"


class Agent:
    """An agent that acts, for states and actions as they are in its data, and may be trained further."""

    losses: dict[str, list[float]]
    """Means of each loss in training, and in `update` the updates after which they were taken."""
    _transitions: Transitions | None = None
    _data: ReplayBuffer | None = None
    _pruning = PruningConfig()

    def __init__(self, agent: agents.Agent, seed: Seed = 0, device: str | torch.device = "cpu") -> None:
        self._agent: agents.Agent | None = agent
        self._spec, self._algorithm = agent.spec, agent.algorithm
        self._masks = agent.masks
        self._noise, self._device = Randomness("acting", [seed]), _device(device)
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget what training has reached, but for networks and masks."""
        self._reached: Reached = ({}, [])
        self._interrupted: dict[int, Reached] = {}
        self.losses = {}

    @staticmethod
    def load(path: str | Path, seed: Seed = 0, device: str | torch.device = "cpu") -> Agent:
        """Read an agent that was saved here or by the pipeline, to act, or to be trained on more data.

        Args:
            path: its file, packed or not, or the folder that holds it as `agent.safetensors`; or the name of
                an agent that comes with the package, `halfcheetah-snip`.
            seed: of the noise in :meth:`act`.
            device: on which it is trained, `cpu` or `cuda`.

        Raises:
            UserError: the file is missing, damaged, or holds no agent, or there is no such device.
        """
        return Agent(*_read(path, seed, device))

    @property
    def agent(self) -> agents.Agent:
        """Specification, networks and masks.

        Raises:
            UserError: the agent has not been trained.
        """
        if self._agent is None:
            raise UserError("this agent has not been trained; call fit(updates=…) first")
        return self._agent

    @property
    def masks(self) -> dict[str, NDArray[np.bool_]]:
        """Masks (out, in) by `network.layer`, true where a weight is kept."""
        return {name: mask.numpy() for name, mask in agents.flatten_masks(self._masks).items()}

    @property
    def layers(self) -> list[LayerCount]:
        """Numbers of weights of each layer, in all and kept."""
        return list(pruning.count_agent_layers(self._algorithm, self._masks))

    @property
    def sparsity(self) -> float:
        """Fraction of the weights that are pruned."""
        layers = self.layers
        return 1 - sum(layer.weights_kept for layer in layers) / sum(layer.weights_total for layer in layers)

    @cached_property
    def _acting(self) -> Mapping[str, AnyNetwork]:
        """Networks in the form that acts fastest; making them takes a pruned agent longer than acting."""
        return self.agent.acting_networks()

    def __repr__(self) -> str:
        """Algorithm and pruning."""
        pruned = "" if self._spec.pruner == DENSE else f", {self._spec.pruner} {self._spec.sparsity:g}"
        return f"{algorithm_class(self._spec.algorithm).__name__}{pruned}"

    def act(self, observations: ArrayLike, deterministic: bool = False) -> NDArray[np.float32]:
        """Actions (A,) at an observation (S,), or (N, A) at several (N, S).

        BCQ, and BC with a VAE, sample: each call draws new random numbers; :meth:`load` restarts the
        sequence. If `deterministic`, they take the mean of the latents, 0.

        Raises:
            UserError: the shape is wrong, something isn't a finite number or is too large for a finite
                action, or the agent has not been trained.
        """
        agent, given = self.agent, numbers(observations, "'observations'")
        size = agent.algorithm.state_size
        if given.ndim not in (1, 2) or given.shape[-1] != size:
            raise UserError(f"observations of shape {given.shape}: this agent takes ({size},) or (N, {size})")
        with np.errstate(over="ignore"):
            states = given.astype(np.float32)
        batch = torch.from_numpy(np.atleast_2d(states))[None]
        shape = batch.shape[1], *agent.algorithm.noise_shape
        noise = torch.zeros(1, *shape) if deterministic else self._noise.normal(*shape)
        with torch.no_grad():
            actions = agent.algorithm.act(self._acting, batch, noise)[0].numpy()
        actions = agent.bounds.from_unit(actions) if agent.bounds else actions
        if not (np.isfinite(states).all() and np.isfinite(actions).all()):
            raise UserError(f"observations reach {largest(given):.2g}: the action isn't finite")
        return actions if states.ndim == 2 else actions[0]

    @checked
    def fit(self, updates: Count, data: Dataset | None = None, *, progress: bool = True) -> Self:
        """Train for some updates, or some more. On a CPU, a pruned agent computes with only its kept weights.

        If Ctrl-C interrupted a training, the next call continues it, to the same agent. More updates
        continue as if all had been asked for at once. But masks that change during training (`set`, `rigl`,
        `gradual`, `finetuned`) stay as they are, and a falling learning rate is that of its place among all
        updates. An agent that was loaded, or gets new data, keeps networks and masks; its optimisers, target
        networks, learning rates, batches and `losses` begin anew.

        Args:
            updates: number of updates to make, each on a batch.
            data: what to train on from now on; by default the previous data, which a loaded agent lacks.
            progress: whether to show a bar.

        Raises:
            UserError: the number is not whole or less than 1, a loss is no longer finite, or there are no
                data, or their sizes or bounds of actions differ from the agent's.
        """
        if data is not None and data.transitions is not self._transitions:
            self._train_on(data.transitions)
        if self._data is None:
            raise UserError("a loaded agent has no data to train on; give some: fit(updates, data)")
        state, records = self._interrupted.get(updates, self._reached)
        stack = self._stack(self._data, updates)
        stack.restore([state])
        every, last, made = max(1, updates // RECORDS), stack.updates, updates - stack.updates + stack.update
        bar = tqdm(total=updates, initial=made, desc=str(self), unit="update", disable=not progress)
        with bar, flushed_denormals():
            while stack.update < last:
                before = stack.update
                stack.train_until(stack.next_stop(every))
                bar.update(stack.update - before)
                if stack.update % every == 0 or stack.update == last:
                    records = [*records, {"update": stack.update} | stack.losses.means(0)]
                    stack.losses.clear()
                if stack.update % CHECK_EVERY == 0:  # a copy, as Ctrl-C may come within an update
                    self._interrupted = {updates: (stack.agent_state(0), records)}
        environment = self._agent.environment if self._agent else None
        self._agent = dataclasses.replace(stack.agent(0), spec=self._spec, environment=environment)
        self._masks = self._agent.masks
        vars(self).pop("_acting", None)
        self._reached, self._interrupted = (stack.agent_state(0), records), {}
        # A delayed network's loss may not have been computed at first.
        names = dict.fromkeys(name for record in records for name in record)
        self.losses = {name: [record.get(name, float("nan")) for record in records] for name in names}
        return self

    def _train_on(self, transitions: Transitions) -> None:
        """Train on these data from now on."""
        own, bounds = self._algorithm, self._agent.bounds if self._agent else transitions.bounds
        wanted = own.state_size, own.action_size, bounds
        if (transitions.state_size, transitions.action_size, transitions.bounds) != wanted:
            low, high = (bounds.low, bounds.high) if bounds else (-1, 1)
            raise UserError(
                f"data doesn't suit the agent: it takes states of {wanted[0]} numbers and actions of "
                f"{wanted[1]}, by Dataset(…, action_low={low}, action_high={high})"
            )
        self._transitions = transitions
        self._data = ReplayBuffer(transitions, self._device, own.config.normalize_states)
        self._begin_anew()

    def _stack(self, data: ReplayBuffer, updates: int) -> Stack:
        """The agent with its networks, if it has been trained, for so many updates more."""
        spec, networks = self._spec, None
        if self._agent:
            networks = self._agent.networks
            if data.normalizer:
                raw, architectures = data.normalizer.inverse, self._algorithm.architectures
                networks = {
                    name: raw.fold(network, architectures[name].state_layers)
                    for name, network in networks.items()
                }
            if spec.pruner in METHODS:  # those masks stay as they are
                spec = dataclasses.replace(spec, pruner="magnitude")
        return Stack(
            [Member(spec, self._masks, self._pruning.scope)],
            self._algorithm,
            data,
            updates + int(self._reached[0].get("update", 0)),
            networks=networks,
            draw=int(self._pruning.reinitialize),
        )

    @checked
    def evaluate(
        self,
        environment: str | Environment | gymnasium.Env | Callable[[], gymnasium.Env],
        episodes: Count = 10,
        seed: Seed = 0,
    ) -> NDArray[np.float64]:
        """Undiscounted returns of some episodes, (episodes,), each from a different initial state.

        Args:
            environment: Gymnasium's id, such as `Hopper-v5`, or an
                :class:`~singleshot.rl.environments.Environment` with arguments and a time limit; or an
                environment of your own, wrapped or not, or a function that makes one, played as it is.
            episodes: number of episodes.
            seed: of the policy's noise.

        Raises:
            UserError: there is no such environment, its observations or actions differ, or `episodes` is
                less than 1.
        """
        if not isinstance(environment, str | Environment):
            made = environment if isinstance(environment, gymnasium.Env) else environment()
            if not isinstance(made, gymnasium.Env):
                raise UserError(f"the function of environments returned {shown(made)}, not a gymnasium.Env")
            return self._play(made, episodes, seed)
        where = Environment(environment) if isinstance(environment, str) else environment
        if (spaces := known_spaces(where)) and spaces.time_limit is None:
            logger.warning("%s has no time limit: this ends only when its episodes do", where.name)
        returns, _ = evaluate(self.agent, where, episodes, seed)
        return returns

    def _play(self, environment: gymnasium.Env, episodes: int, seed: int) -> NDArray[np.float64]:
        actions, player = environment.action_space, Agent(self.agent, seed)
        wanted = (player.agent.algorithm.action_size,)
        if not isinstance(actions, gymnasium.spaces.Box) or actions.shape != wanted:
            raise UserError(f"{environment}: its actions are {actions}, this agent's have shape {wanted}")
        returns = np.zeros(episodes)
        with playing(environment):
            for episode in range(episodes):
                observation, _ = environment.reset(seed=FIRST_EPISODE + episode)
                ended = False
                while not ended:
                    action = player.act(observation).clip(actions.low, actions.high)
                    observation, reward, terminated, truncated, _ = environment.step(action)
                    returns[episode] += float(reward)
                    ended = terminated or truncated
        if not np.isfinite(returns).all():
            raise UserError(f"environment {environment}: its rewards are not finite; correct it")
        return returns

    @checked
    def save(self, path: str | Path) -> None:
        """Write the agent as safetensors, for :meth:`load`; the file's folder is made if it is missing.

        Raises:
            UserError: the path is a folder or can't be written, or the agent has not been trained.
        """
        agent = self.agent
        with writing(path, "agent.safetensors") as file:
            agent.save(file)

    @checked
    def export(self, path: str | Path, opset: Count = 18) -> None:
        """Write the policy as an ONNX graph, without the hidden units that pruning made superfluous.

        It takes `state` (batch, S) and, for BC and BCQ, standard normal `latents`; its output `action`
        (batch, A) is within the bounds of the data's actions. `opset` is the version of ONNX's operators.
        Needs `pip install '.[export]'` in the checkout.

        Raises:
            UserError: packages are missing, the path is a folder or can't be written, PyTorch can't write
                this opset, or the agent has not been trained.
        """
        agent = self.agent
        with explained("export needs more packages", "pip install '.[export]' in the checkout"):
            from singleshot.io.to_onnx import card_of, to_onnx
            from singleshot.rl.policies import forms_of, policy_network
        with writing(path, "agent.onnx") as file, tempfile.TemporaryDirectory() as directory:
            network = policy_network(agent, forms_of(agent.spec)[-1])
            source = Path(directory) / "agent.safetensors"
            agent.save(source)
            graph = to_onnx(network, card_of(network, file.stem, "unknown", source), opset)
            if graph.opset_import[0].version != opset:  # which PyTorch doesn't say
                raise UserError(f"opset is {opset}; PyTorch's exporter writes 18 to 25, give one of these")
            file.write_bytes(graph.SerializeToString())


class TrainableAgent(Agent):
    """An agent that is to be trained: :meth:`prune` it or not, then :meth:`fit` it.

    Hyper-parameters are keyword arguments, with the defaults of the algorithm's paper or its authors' code;
    :class:`~singleshot.rl.algorithm.AlgorithmConfig` says what those of all algorithms mean, and the class
    that an algorithm names, what its own do. With `normalize_states=True`, the agent normalises states
    itself. `seed` decides initial weights, batches and noise. `device` is one of PyTorch's, `cpu` or `cuda`.

    Raises:
        UserError: there is no such hyper-parameter or device, a value is out of range, or the data aren't a
            :class:`Dataset`.
    """

    name: ClassVar[str]
    """The algorithm's name in :mod:`singleshot.rl.algorithms`."""
    _transitions: Transitions
    _data: ReplayBuffer

    def __init_subclass__(cls) -> None:
        """List the algorithm's hyper-parameters in the docstring."""
        fields = dataclasses.fields(algorithm_class(cls.name).config_type)
        listed = ", ".join(f"`{field.name}={field.default!r}`" for field in fields)
        cls.__doc__ = f"{cls.__doc__ or cls.__name__}\n\n    Hyper-parameters: {listed}.\n    "

    @checked
    def __init__(
        self, data: Dataset, *, seed: Seed = 0, device: str | torch.device = "cpu", **hyper_parameters: Any
    ) -> None:
        """Make an agent with initial weights; the class's docstring lists its hyper-parameters."""
        self._transitions, self._device = data.transitions, _device(device)
        self._agent, self._noise = None, Randomness("acting", [seed])
        self.config: Any = settings(
            algorithm_class(self.name).config_type, hyper_parameters, type(self).__name__
        )
        self._specify(AgentSpec(OWN_DATA, self.name, DENSE, 0.0, seed))
        self._data = ReplayBuffer(self._transitions, self._device, self.config.normalize_states)

    @checked
    def prune(self, method: str | ScoreFunction = "snip", sparsity: float = 0.95, **further: Any) -> Self:
        """Decide, before training, which weights to train: a fraction `sparsity` of them is left out.

        Args:
            method: `snip`, `grasp`, `synflow`, `magnitude`, `random` or `erk`, each also with a control
                behind it, such as `snip-shuffled`; or `set`, `rigl`, `gradual` or `finetuned`, which change
                masks during training; or `small`, a dense agent with as many weights in narrower layers; or
                your own function from an :class:`~singleshot.pruning.pruner.Objective` and the weights of a
                network to scores, by layer. The agent is then named after the function.
            sparsity: fraction of each network's weights to leave out, above 0 and less than 1.
            further: `scope`, `iterations`, `batch_size`, `normalize_states` or `reinitialize`, as in
                :class:`~singleshot.pruning.masks.PruningConfig`.

        Raises:
            UserError: the agent is trained already, or there is no such method or setting, or the sparsity is
                out of range.
        """
        if self._agent is not None:
            raise UserError("prune before fit: this agent is trained already; make a new one from its data")
        check_sparsity(sparsity)
        self._pruning = config = settings(PruningConfig, further, "prune")
        self._specify(dataclasses.replace(self._spec, pruner=name_of(method), sparsity=sparsity))
        if first := method if callable(method) else self._spec.mask_pruner:
            data, normalized = self._data, config.normalizes(self.config.normalize_states)
            if normalized != self.config.normalize_states:
                data = ReplayBuffer(self._transitions, self._device, normalized)
            seed = self._spec.seed
            self._masks = pruning.make_masks(self._algorithm, data, first, sparsity, seed, config)
        return self

    def _specify(self, spec: AgentSpec) -> None:
        sizes = self._transitions.state_size, self._transitions.action_size
        self._spec, self._algorithm = spec, agents.make_algorithm(spec, self.config, *sizes)
        self._masks = agents.dense_masks(self._algorithm)
        self._begin_anew()


class BC(TrainableAgent):
    """Behaviour cloning, by BCQ's VAE or an MLP (:class:`~singleshot.rl.algorithms.bc.BCConfig`)."""

    name = "bc"


class BCQ(TrainableAgent):
    """Batch-constrained deep Q-learning (:class:`~singleshot.rl.algorithms.bcq.BCQConfig`)."""

    name = "bcq"


class TD3BC(TrainableAgent):
    """TD3+BC, an actor held to the data's actions (:class:`~singleshot.rl.algorithms.td3bc.TD3BCConfig`)."""

    name = "td3bc"


class IQL(TrainableAgent):
    """Implicit Q-learning (:class:`~singleshot.rl.algorithms.iql.IQLConfig`)."""

    name = "iql"


@checked
def _read(
    path: str | Path, seed: Seed, device: str | torch.device
) -> tuple[agents.Agent, Seed, str | torch.device]:
    return agents.load_agent(shipped.FILES.get(str(path), Path(path))), seed, device


def _device(name: str | torch.device) -> str:
    with explained(f"device is {name}, which PyTorch can't use here", "give another, such as cpu"):
        torch.empty(0, device=name).cpu()
    return str(name)


def _bounds(actions: NDArray, low: ArrayLike | None, high: ArrayLike | None) -> ActionBounds:
    """Those that are given, else those of the actions (N, A)."""
    if low is None and high is None:
        return ActionBounds.of(actions)
    try:
        both = (np.broadcast_to(np.asarray(each, np.float64), actions.shape[1:]) for each in (low, high))
        bounds = ActionBounds(*(tuple(each.tolist()) for each in both))
    except (ValueError, TypeError) as error:
        raise UserError(
            f"Dataset: action_low and action_high are {shown(low)} and {shown(high)}; give both, each one "
            f"number or {actions.shape[1]}, the lower ones less than the higher ones, none beyond {LARGEST:g}"
        ) from error
    within = np.abs(bounds.to_unit(actions)) <= 1 + TOLERANCE
    check_each(actions, "actions", "Dataset", within, "widen action_low and action_high, or clip the actions")
    return bounds
