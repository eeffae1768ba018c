"""Task: the masks with which agents begin to train."""

from dataclasses import dataclass

import safetensors.torch

from singleshot.io.tables import write_csv
from singleshot.job import Job, per_job
from singleshot.pruning.masks import PruningConfig
from singleshot.rl.agents import AgentSpec, flatten_masks, make_algorithm
from singleshot.rl.algorithm import AlgorithmConfig
from singleshot.rl.data.replay import ReplayBuffer
from singleshot.rl.data.transitions import Transitions
from singleshot.rl.pruning import AgentLayerCount, count_agent_layers, make_masks


@dataclass(frozen=True)
class LayerRow:
    """A row of `layers.csv`: what pruning left of one layer."""

    agent: AgentSpec
    count: AgentLayerCount


@dataclass(frozen=True)
class PruneParams:
    """Everything that the masks of one agent depend on, besides its dataset."""

    agent: AgentSpec
    """Specification of the agent, whose training has to begin with masks."""
    algorithm: AlgorithmConfig
    pruning: PruningConfig


@per_job
def prune_agent(job: Job) -> None:
    """Make the masks of a job's agent, from the initial weights of its seed.

    The input is `dataset`. The output gets `masks.safetensors` (bool (out, in) by `network.layer`, true where
    a weight is kept) and `layers.csv` (a :class:`LayerRow` for each layer).

    Raises:
        UserError: the dataset is damaged, or the scores aren't finite.
    """
    params: PruneParams = job.params
    spec = params.agent
    assert spec.mask_pruner is not None
    transitions = Transitions.load(job.inputs["dataset"])
    normalized = params.pruning.normalizes(params.algorithm.normalize_states)
    data = ReplayBuffer(transitions, job.device, normalized)
    algorithm = make_algorithm(spec, params.algorithm, transitions.state_size, transitions.action_size)
    masks = make_masks(algorithm, data, spec.mask_pruner, spec.sparsity, spec.seed, params.pruning)
    cpu = {key: mask.cpu() for key, mask in flatten_masks(masks).items()}
    safetensors.torch.save_file(cpu, job.output / "masks.safetensors")
    rows = [LayerRow(spec, count) for count in count_agent_layers(algorithm, masks)]
    write_csv(job.output / "layers.csv", LayerRow, rows)
