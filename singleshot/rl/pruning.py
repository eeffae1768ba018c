"""Single-shot pruning of an agent (Arnob et al. 2021, algorithm 1): masks from initial weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from singleshot.pruning.effective import on_paths
from singleshot.pruning.masks import LayerCount, PruningConfig, count_layers, prune_networks
from singleshot.pruning.pruner import Objective, ScoreFunction
from singleshot.random_streams import stream
from singleshot.rl.agents import AgentMasks, initial_networks, parts_of
from singleshot.rl.algorithm import Algorithm, Loss
from singleshot.rl.data.replay import Randomness, ReplayBuffer
from singleshot.rl.networks import Architecture, DenseNetwork, LayerTensors, total


def make_masks(
    algorithm: Algorithm,
    data: ReplayBuffer,
    pruner: str | ScoreFunction,
    sparsity: float,
    seed: int = 0,
    config: PruningConfig | None = None,
) -> AgentMasks:
    """Masks of an agent's networks, bool (out, in), from the initial weights of its seed.

    Each round of pruning uses its own batch, by default of the size that the pruner's paper uses. Batches
    and noise depend on the seed alone, so that pruners, and sparsities of one pruner, are compared on the
    same data.

    Raises:
        UserError: the pruner is unknown, the sparsity is outside [0, 1), or scores aren't finite.
    """
    config = config or PruningConfig()
    device, architectures = data.device, algorithm.architectures
    networks = {name: network.to(device) for name, network in initial_networks(algorithm, [seed]).items()}

    def objectives(iteration: int) -> Mapping[str, Objective]:
        randomness = Randomness("pruning", [seed], iteration, device=device)
        batch = data.sample(randomness, config.batch_size_of(pruner))
        # The same in each round, or else a random score's layer densities would change from round to round.
        scores = stream("pruning scores", seed, 0)
        # At initialization, target networks equal their networks: θ' = θ.
        return {
            name: _objective(networks[name], architectures[name], loss, scores)
            for name, loss in algorithm.losses(networks, networks, batch, randomness)
        }

    weights = {
        name: {layer: own[0].T.contiguous() for layer, own in network.weights.items()}
        for name, network in networks.items()
    }
    observed = {
        name: dict.fromkeys(architecture.state_layers, algorithm.state_size)
        for name, architecture in architectures.items()
    }
    return prune_networks(objectives, weights, pruner, sparsity, config, parts_of(algorithm), observed)


def _objective(
    network: DenseNetwork, architecture: Architecture, loss: Loss, generator: torch.Generator
) -> Objective:
    """A network's loss and flow as functions of its weights (out, in) alone, which pruning differentiates."""

    def stacked(weights: LayerTensors) -> LayerTensors:
        return {layer: own.T[None].contiguous() for layer, own in weights.items()}

    return Objective(
        lambda weights: total(loss(network.with_weights(stacked(weights))).values()).sum(),
        lambda weights: architecture.flow(stacked(weights)),
        generator,
    )


@dataclass(frozen=True)
class AgentLayerCount(LayerCount):
    """What pruning left of one layer of an agent."""

    states_total: int | None
    """Number of coordinates of the state; None if the layer does not read the state."""
    states_kept: int | None
    """Number of coordinates of the state for which the layer keeps at least one weight."""
    weights_on_paths: int
    """Number of kept weights on a path from an input to an output of the layer's MLP."""


def count_agent_layers(algorithm: Algorithm, masks: AgentMasks) -> Iterator[AgentLayerCount]:
    """What an agent's masks keep of each layer."""
    effective = {name: _on_paths(algorithm.architectures[name], own) for name, own in masks.items()}
    for count in count_layers(masks, parts_of(algorithm)):
        states_total = states_kept = None
        if count.layer in algorithm.architectures[count.network].state_layers:
            states = masks[count.network][count.layer][:, : algorithm.state_size].any(dim=0)
            states_total, states_kept = len(states), int(states.sum())
        own = effective[count.network][count.layer]
        yield AgentLayerCount(
            **vars(count), states_total=states_total, states_kept=states_kept, weights_on_paths=own
        )


def _on_paths(architecture: Architecture, masks: LayerTensors) -> dict[str, int]:
    """Number of kept weights on a path through their MLP, by layer."""
    counts: dict[str, int] = {}
    for hidden, heads in architecture.perceptrons:
        *inner, last = on_paths(
            [*(masks[layer] for layer in hidden), torch.cat([masks[head] for head in heads])]
        )
        found = *inner, *last.split([len(masks[head]) for head in heads])
        counts |= {layer: int(own.sum()) for layer, own in zip((*hidden, *heads), found, strict=True)}
    return counts
