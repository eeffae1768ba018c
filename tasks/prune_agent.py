"""Single-shot pruning of an agent (Arnob et al. 2021, algorithm 1): masks from initial weights."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

import safetensors.torch
from torch import Tensor

from singleshot.pruning.masks import PruningConfig, prune
from singleshot.pruning.objective import Objective
from singleshot.pruning.statistics import count_layers
from singleshot.random_streams import stream
from singleshot.rl.agents import (
    AgentMasks,
    AgentSpec,
    flatten_masks,
    initial_networks,
    make_algorithm,
    parts_of,
)
from singleshot.rl.algorithm import AlgorithmConfig, Loss
from singleshot.rl.data.replay import ReplayBuffer
from singleshot.rl.data.transitions import Transitions
from singleshot.rl.environments import TASKS
from singleshot.rl.networks import DenseNetwork, LayerTensors, total
from singleshot.rl.randomness import Randomness
from tasks.job import Job, per_job
from tasks.tables import write_csv


@dataclass(frozen=True)
class LayerRow:
    """A row of `layers.csv`: what pruning left of one layer."""

    task: str
    algorithm: str
    network: str
    part: str
    layer: str
    pruner: str
    sparsity: float
    seed: int
    weights_total: int
    weights_kept: int
    states_total: int | None
    """Number of coordinates of the state; None if the layer does not read the state."""
    states_kept: int | None
    """Number of coordinates of the state for which the layer keeps at least one weight."""


@dataclass(frozen=True)
class PruneParams:
    """Everything that the masks of one agent depend on, besides its dataset."""

    agent: AgentSpec
    """Specification of the agent, whose training has to begin with masks."""
    algorithm: AlgorithmConfig
    pruning: PruningConfig

    @property
    def normalize_states(self) -> bool:
        """Whether scores are computed on normalised states."""
        own = self.pruning.normalize_states
        return self.algorithm.normalize_states if own is None else own


@per_job
def prune_agent(job: Job) -> None:
    """Make the masks of a job's agent, from the initial weights of its seed.

    The input is `dataset`. The output gets `masks.safetensors` (bool (out, in) by `network.layer`, true where
    a weight is kept) and `layers.csv` (a :class:`LayerRow` for each layer).

    Raises:
        UserError: the dataset is damaged, or the scores aren't finite.
    """
    params: PruneParams = job.params
    transitions = Transitions.load(job.inputs["dataset"], TASKS[params.agent.task])
    data = ReplayBuffer(transitions, job.device, params.normalize_states)
    masks = make_masks(params, data, job.device)
    cpu = {key: mask.cpu() for key, mask in flatten_masks(masks).items()}
    safetensors.torch.save_file(cpu, job.output / "masks.safetensors")
    write_csv(job.output / "layers.csv", LayerRow, _layers(params, masks))


def make_masks(params: PruneParams, data: ReplayBuffer, device: str = "cpu") -> AgentMasks:
    """Masks of an agent's networks, bool (out, in).

    Each round of pruning uses its own batch, by default of the size that the pruner's paper uses. Batches
    and noise depend on the seed alone, so that pruners, and sparsities of one pruner, are compared on the
    same data.
    """
    spec, pruning, pruner = params.agent, params.pruning, params.agent.mask_pruner
    assert pruner is not None
    algorithm = make_algorithm(spec, params.algorithm)
    architectures = algorithm.architectures
    networks = {
        name: network.to(device) for name, network in initial_networks(algorithm, [spec.seed]).items()
    }

    def objectives(iteration: int) -> Mapping[str, Objective]:
        randomness = Randomness("pruning", [spec.seed], iteration, device=device)
        batch = data.sample(randomness, pruning.batch_size_of(pruner))
        # The same in each round, or else a random score's layer densities would change from round to round.
        scores = stream("pruning scores", spec.seed, 0)
        # At initialization, target networks equal their networks: θ' = θ.
        return {
            name: Objective(_loss_of_weights(networks[name], loss), architectures[name].flow, scores)
            for name, loss in algorithm.losses(networks, networks, batch, randomness)
        }

    weights = {name: network.weights for name, network in networks.items()}
    observed = {
        name: dict.fromkeys(architecture.state_layers, algorithm.state_size)
        for name, architecture in architectures.items()
    }
    masks = prune(objectives, weights, pruner, spec.sparsity, pruning, parts_of(algorithm), observed)
    return {
        name: {layer: mask[0].T.contiguous() for layer, mask in layers.items()}
        for name, layers in masks.items()
    }


def _loss_of_weights(network: DenseNetwork, loss: Loss) -> Callable[[LayerTensors], Tensor]:
    """A network's loss as a function of its weights alone, which pruning differentiates."""
    return lambda weights: total(loss(network.with_weights(weights)).values()).sum()


def _layers(params: PruneParams, masks: AgentMasks) -> Iterator[LayerRow]:
    spec = params.agent
    algorithm = make_algorithm(spec, params.algorithm)
    architectures = algorithm.architectures
    for count in count_layers(masks, parts_of(algorithm)):
        states_total = states_kept = None
        if count.layer in architectures[count.network].state_layers:
            states = masks[count.network][count.layer][:, : algorithm.state_size].any(dim=0)
            states_total, states_kept = len(states), int(states.sum())
        yield LayerRow(**asdict(spec), **asdict(count), states_total=states_total, states_kept=states_kept)
