"""Networks of K agents under training: masks, optimisers and target networks, whatever the algorithm."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from tasks.errors import UserError
from tasks.offline_rl.algorithm import Algorithm
from tasks.offline_rl.data.replay import Batch
from tasks.offline_rl.networks import (
    AnyNetwork,
    DenseNetwork,
    LayerTensors,
    SparseNetwork,
    from_parameters,
    total,
)
from tasks.offline_rl.randomness import Randomness
from tasks.offline_rl.training.adam import MOMENTS, Adam

if TYPE_CHECKING:
    from tasks.sparse.perceptron import SparsePerceptron

SPARSE_DENSITY = 0.4
"""A network that keeps at most this fraction of its weights trains faster sparsely than in full, measured by
`python -m benchmarks.offline_rl_updates`: at half of them both take as long, with AVX-512 and with AVX2."""
Execution = Literal["auto", "masked", "sparse"]
"""How pruned networks compute: `masked`, in full with zeros where weights are pruned; `sparse`, with the kept
weights alone; `auto`, sparsely where that is faster, which is for a lone agent on a CPU."""
AgentState = dict[str, Tensor]
"""What the update of one agent depends on, by name: parameters, targets and Adam's moments, (1, …) each."""


class Learner:
    """K agents' networks, each with an Adam optimiser, and slowly following targets of some of them.

    `masks` (network → layer → bool (K, in, out)) names the weights that stay exactly zero: in the networks,
    in Adam's moments and in the targets. A dense agent's are all true; `None` if the whole stack is dense.
    Networks of a lone agent on a CPU may be sparse ones; :meth:`whole` gives all of them in full.
    `updates` is how many there will be, which a learning rate that decays has to know.

    Raises:
        UserError: execution is `sparse`, and pruned agents are several, or on a GPU.
        ValueError: the learning rate decays, and `updates` isn't given.
    """

    def __init__(
        self,
        networks: Mapping[str, DenseNetwork],
        algorithm: Algorithm,
        masks: Mapping[str, LayerTensors] | None,
        device: str = "cpu",
        execution: Execution = "auto",
        updates: int | None = None,
    ) -> None:
        self.algorithm, self.device = algorithm, device
        self.perceptrons = _sparse_perceptrons(algorithm, masks, device, execution)
        pruned = {
            name: network if masks is None else _prune(network, masks[name])
            for name, network in networks.items()
        }
        self.networks = {name: self._hold(name, network) for name, network in pruned.items()}
        # Sparse ones in full: what takes no part in training stays as it is here.
        self.whole_at_first = {name: pruned[name].copy() for name in self.perceptrons}
        # Multiplying by floats takes a third of the time of multiplying by bools (0.16, 0.46 ms, decoder).
        self.masks = {
            name: {layer: mask.to(device, torch.float32) for layer, mask in layers.items()}
            for name, layers in (masks or {}).items()
            if name not in self.perceptrons
        }
        for network in self.networks.values():
            for parameter in network.parameters().values():
                parameter.requires_grad_()
        # Copies of the networks after pruning: copied before, as the authors' BCQ does at construction, the
        # targets' pruned weights would fade only as (1 - τ)^t.
        self.targets = {name: self.networks[name].copy() for name in algorithm.targets}
        config = algorithm.config
        if config.learning_rate_decay and updates is None:
            raise ValueError("a learning rate that decays has to know the number of updates")
        decay_steps = updates if config.learning_rate_decay else None
        self.optimizers = {
            name: Adam(network.parameters().values(), config.learning_rate, decay_steps)
            for name, network in self.networks.items()
        }

    def update(self, batch: Batch, randomness: Randomness) -> dict[str, Tensor]:
        """A step of each network down its loss, in turn, then of the targets. Returns the losses' terms."""
        found: dict[str, Tensor] = {}
        for name, loss in self.algorithm.losses(self.networks, self.targets, batch, randomness):
            terms = loss(self.networks[name])
            self.minimize(name, total(terms.values()))
            found |= {term: value.detach() for term, value in terms.items()}
        self.update_targets()
        return found

    def minimize(self, name: str, loss: Tensor) -> None:
        """One step of network `name` down the gradient of `loss`, (K,).

        Summed over agents, not averaged: each agent's gradient is then the one it has alone.
        """
        parameters = self.networks[name].parameters()
        gradients = dict(
            zip(parameters, torch.autograd.grad(loss.sum(), list(parameters.values())), strict=True)
        )
        for layer, mask in self.masks.get(name, {}).items():
            # Gradients, not weights after the step: a pruned weight that began at zero and never has a
            # gradient keeps zero moments, and Adam adds 0 / (√0 + ε) to it.
            gradients[f"{layer}.weight"].mul_(mask)
        # Contiguous as the parameters are (free if so): fused Adam goes by memory, not by strides.
        self.optimizers[name].step([gradient.contiguous() for gradient in gradients.values()])

    @torch.no_grad()
    def update_targets(self) -> None:
        """θ' ← τ θ + (1 - τ) θ' for every target network."""
        for name, τ in self.algorithm.targets.items():
            followed = self.networks[name].parameters().values()
            torch._foreach_lerp_(list(self.targets[name].parameters().values()), list(followed), τ)

    def whole(self, agent: int) -> dict[str, DenseNetwork]:
        """Agent `agent`'s networks in full, a stack of one."""
        return {name: self._in_full(name, network).agent(agent) for name, network in self.networks.items()}

    def agent_state(self, agent: int) -> AgentState:
        """A copy of all that agent `agent` needs to go on, on the CPU, in full: it may go on in a stack."""
        state: AgentState = {}
        for kind, name, held in self._kinds():
            own = self._in_full(name, held, moments=kind in MOMENTS).agent(agent)
            state |= {
                f"{kind}.{name}.{key}": tensor.cpu().clone() for key, tensor in own.parameters().items()
            }
        return state

    @torch.no_grad()
    def restore(self, agents: Sequence[AgentState], updates: int) -> None:
        """Go on from the states of all K agents, which have made `updates` updates."""
        for optimizer in self.optimizers.values():
            optimizer.restore_steps(updates)
        for kind, name, held in self._kinds():
            keys = self.whole_at_first.get(name, held).parameters()
            saved = from_parameters(
                {key: torch.cat([agent[f"{kind}.{name}.{key}"] for agent in agents]) for key in keys}
            )
            if kind == "network" and name in self.perceptrons:
                self.whole_at_first[name] = saved
            own = self._hold(name, saved)
            for tensor, value in zip(held.parameters().values(), own.parameters().values(), strict=True):
                tensor.copy_(value)

    def _kinds(self) -> Iterator[tuple[str, str, AnyNetwork]]:
        """All tensors of the agents: kind, network, and tensors of that kind as a network of that form."""
        for name, network in self.networks.items():
            yield "network", name, network
            for moment in MOMENTS:
                yield moment, name, network.map(functools.partial(self._moment, name, moment))
        for name, target in self.targets.items():
            yield "target", name, target

    def _moment(self, name: str, moment: str, parameter: Tensor) -> Tensor:
        values: Tensor = self.optimizers[name].state[parameter][moment]
        return values

    def _hold(self, name: str, network: DenseNetwork) -> AnyNetwork:
        """A copy of network `name` in the form in which it is trained."""
        if name in self.perceptrons:
            return SparseNetwork.of(self.perceptrons[name], network)
        return network.copy().to(self.device)

    def _in_full(self, name: str, network: AnyNetwork, moments: bool = False) -> DenseNetwork:
        """A network of the form of network `name`, with all its weights; moments of what is idle are zero."""
        if isinstance(network, DenseNetwork):
            return network
        idle = self.whole_at_first[name]
        return network.within(idle.map(torch.zeros_like) if moments else idle)


def _prune(network: DenseNetwork, masks: LayerTensors) -> DenseNetwork:
    return network.with_weights(
        {layer: θ * masks[layer].to(θ.device) for layer, θ in network.weights.items()}
    )


def _sparse_perceptrons(
    algorithm: Algorithm, masks: Mapping[str, LayerTensors] | None, device: str, execution: Execution
) -> dict[str, dict[str, "SparsePerceptron"]]:
    """The perceptrons of those networks that are to be held sparsely, by their first layers."""
    if masks is None or execution == "masked":
        return {}
    lone = device == "cpu" and _agents(masks) == 1
    if execution == "sparse" and not lone:
        raise UserError(
            "execution is sparse, which is for one agent at a time on a CPU; set offline_rl.execution to auto"
        )
    if not lone:
        return {}
    # Here, as Numba takes a quarter of a second to import, and most that import agents train none.
    from tasks.sparse.perceptron import SparsePerceptron

    densest = 1.0 if execution == "sparse" else SPARSE_DENSITY
    own = {name: {layer: mask[0].bool() for layer, mask in layers.items()} for name, layers in masks.items()}
    return {
        name: {
            hidden[0]: SparsePerceptron.of(hidden, heads, own[name])
            for hidden, heads in architecture.perceptrons
        }
        for name, architecture in algorithm.architectures.items()
        if _density(own[name]) <= densest
    }


def _agents(masks: Mapping[str, LayerTensors]) -> int:
    return max(len(mask) for layers in masks.values() for mask in layers.values())


def _density(masks: LayerTensors) -> float:
    """The fraction of weights that is kept."""
    return sum(int(m.sum()) for m in masks.values()) / sum(m.numel() for m in masks.values())
