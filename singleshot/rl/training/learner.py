"""Networks of K agents in training: masks, optimisers and target networks, for any algorithm."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam

from singleshot.rl.algorithm import Algorithm
from singleshot.rl.data.replay import Batch, Randomness
from singleshot.rl.networks import (
    AnyNetwork,
    DenseNetwork,
    Differentiated,
    Execution,
    LayerTensors,
    SparseNetwork,
    from_parameters,
    sparse_perceptrons,
    total,
)

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of the state of a parameter."""
Whole = Mapping[str, Mapping[str, DenseNetwork]]
"""All tensors of K agents in full: networks, targets and moments, by kind and by the network's name."""


class Adam:
    """Optimiser of `parameters`, which stay at their addresses in memory, as does all state.

    `torch.optim.Adam(fused=True)` computes the same, but its bookkeeping takes as long as the step of a
    sparse network: IQL, which has three of them, would make a fifth fewer updates (95 % sparsity, a CPU).
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        factor: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """`factor`, a function of the number of steps made, multiplies the learning rate."""
        self.parameters = list(parameters)
        self.learning_rate, self.factor = learning_rate, factor
        self.state = {
            moment: {θ: torch.zeros_like(θ, requires_grad=False) for θ in self.parameters}
            for moment in MOMENTS
        }
        # Numbers of steps made: tensors, as a number would be a constant in a CUDA graph.
        self._steps = [torch.zeros((), device=θ.device) for θ in self.parameters]

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        """Step against each parameter's gradient, of the same shape and contiguous: strides are ignored."""
        rate = self.learning_rate * self.factor(self._steps[0]) if self.factor else self.learning_rate
        means, squares = (list(own.values()) for own in self.state.values())
        adam(
            self.parameters,
            gradients,
            means,
            squares,
            max_exp_avg_sqs=[],
            state_steps=self._steps,
            fused=True,
            capturable=self._steps[0].is_cuda,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )

    @property
    def steps(self) -> int:
        """Number of steps made so far; reading it waits for the device."""
        return int(self._steps[0])

    def restore_steps(self, count: int) -> None:
        """Set the number of steps made so far. Moments are restored by writing to the tensors in `state`."""
        for steps in self._steps:
            steps.fill_(count)


class Learner:
    """K agents' networks, each with an Adam optimiser, and slowly following target networks for some of them.

    Where `masks` (network → layer → bool (K, in, out)) are false, weights stay exactly zero: in the networks,
    in Adam's moments and in the targets. A dense agent's masks are all true; `masks` is None if the whole
    stack is dense. Networks of a single agent on a CPU may be sparse; :meth:`whole` returns all of them in
    full. `updates` is the total number of updates, on which scheduled learning rates depend.

    Raises:
        UserError: execution is `sparse`, but a stack with pruned agents has several agents or is on a GPU.
        ValueError: a learning rate has a schedule, and `updates` isn't given.
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
        self.algorithm, self.device, self.execution, self.updates = algorithm, device, execution, updates
        self.networks: dict[str, AnyNetwork] = {}
        self.targets: dict[str, AnyNetwork] = {}
        self.optimizers: dict[str, Adam] = {}
        self.masks: dict[str, LayerTensors] = {}
        """Of networks in full: floats, by which multiplying takes a third of the time of bools (0.16 against
        0.46 ms for the decoder)."""
        self.idle: dict[str, DenseNetwork] = {}
        """Sparse networks in full: parameters that take no part in training keep these values."""
        # Targets are pruned, too. Copied before pruning, as the authors' BCQ does at construction, their
        # pruned weights would fade only as (1 - τ)^t.
        targets = {name: networks[name] for name in algorithm.targets}
        zeros = {name: network.map(torch.zeros_like) for name, network in networks.items()}
        self.hold({"network": networks, "target": targets} | dict.fromkeys(MOMENTS, zeros), masks)

    @torch.no_grad()
    def hold(self, whole: Whole, masks: Mapping[str, LayerTensors] | None) -> None:
        """Train `whole` on under masks (K, in, out): pruned weights become zero, in all that it has.

        A network that is in full and stays so keeps its tensors, which a CUDA graph needs.
        """
        masks, device = masks or {}, self.device
        self.perceptrons = sparse_perceptrons(self.algorithm.architectures, masks, device, self.execution)
        for name, network in whole["network"].items():
            if name in self.perceptrons or not isinstance(self.networks.get(name), DenseNetwork):
                self._make(name, _masked(network, masks.get(name)))
            if name in masks and name not in self.perceptrons:
                own = {layer: mask.to(device, torch.float32) for layer, mask in masks[name].items()}
                for layer, factors in self.masks.setdefault(name, own).items():
                    factors.copy_(own[layer])
        for kind, name, held in self._kinds():
            values = self._in_its_form(name, _masked(whole[kind][name], masks.get(name))).parameters()
            for key, tensor in held.parameters().items():
                tensor.copy_(values[key])

    def _make(self, name: str, network: DenseNetwork) -> None:
        """Make network `name` in its form, with a target and an optimiser whose values are yet to be set."""
        if name in self.perceptrons:
            self.idle[name] = network.copy()
            self.masks.pop(name, None)
        self.networks[name] = self._in_its_form(name, network)
        if name in self.algorithm.targets:
            self.targets[name] = self.networks[name].copy()
        for parameter in self.networks[name].parameters().values():
            parameter.requires_grad_()
        before = self.optimizers.get(name)
        self.optimizers[name] = self._optimizer(name, self.networks[name])
        self.optimizers[name].restore_steps(before.steps if before else 0)

    def _in_its_form(self, name: str, network: DenseNetwork) -> AnyNetwork:
        """A copy of network `name` in the form in which it is trained."""
        if name in self.perceptrons:
            return SparseNetwork.of(self.perceptrons[name], network)
        return network.copy().to(self.device)

    def in_full(self) -> Whole:
        """All tensors of the agents; moments of parameters that take no part in training are zero."""
        whole: dict[str, dict[str, DenseNetwork]] = {}
        for kind, name, held in self._kinds():
            if isinstance(held, SparseNetwork):
                idle = self.idle[name]
                held = held.within(idle.map(torch.zeros_like) if kind in MOMENTS else idle)
            whole.setdefault(kind, {})[name] = held
        return whole

    def _kinds(self) -> Iterator[tuple[str, str, AnyNetwork]]:
        """Yield all tensors of the agents: their kind, the network's name, and the tensors as a network."""
        for name, network in self.networks.items():
            yield "network", name, network
            for moment, state in self.optimizers[name].state.items():
                yield moment, name, network.map(state.__getitem__)
        for name, target in self.targets.items():
            yield "target", name, target

    def _steps(self, name: str, updates: int) -> int:
        """Number of steps that network `name` makes in so many updates."""
        return updates // self.algorithm.delay if name in self.algorithm.delayed else updates

    def update(self, batch: Batch, randomness: Randomness, whole: bool = True) -> dict[str, Tensor]:
        """Update each network in turn, then the targets (θ' ← τ θ + (1 - τ) θ'); return the losses' terms.

        Losses are summed over agents, not averaged, so that each agent's gradient is the one it has alone. An
        update that is not `whole` leaves out delayed networks and all targets. Every `algorithm.delay`-th
        update has to be whole, and no other.
        """
        found: dict[str, Tensor] = {}
        for name, loss in self.algorithm.losses(self.networks, self.targets, batch, randomness):
            if whole or name not in self.algorithm.delayed:
                terms = loss(self.networks[name])
                if isinstance(terms, Differentiated):
                    gradients = terms.gradients
                else:
                    gradients = self._gradients(name, total(terms.values()).sum())
                self.optimizers[name].step([gradients[key] for key in self.networks[name].parameters()])
                found |= {term: value.detach() for term, value in terms.items()}
        if whole:
            with torch.no_grad():
                for name, τ in self.algorithm.targets.items():
                    θ = self.networks[name].parameters()
                    for key, target in self.targets[name].parameters().items():
                        target.lerp_(θ[key], τ)
        return found

    def _gradients(self, name: str, loss: Tensor) -> Mapping[str, Tensor]:
        """The gradient of `loss` for each parameter of network `name`, 0 for pruned weights."""
        parameters = self.networks[name].parameters()
        found = torch.autograd.grad(loss, list(parameters.values()))
        # Contiguous like the parameters (without cost if they already are): fused Adam ignores strides.
        gradients = {key: gradient.contiguous() for key, gradient in zip(parameters, found, strict=True)}
        for layer, mask in self.masks.get(name, {}).items():
            # Gradients are masked, not weights after the step: a pruned weight that began at zero and never
            # has a gradient keeps zero moments, and Adam adds 0 / (√0 + ε) to it.
            gradients[f"{layer}.weight"].mul_(mask)
        return gradients

    def gradients(self, batch: Batch, randomness: Randomness) -> dict[str, LayerTensors]:
        """Gradients of the losses for all weights, pruned ones too: (K, in, out) by network and layer."""
        whole = self.in_full()
        networks = {name: network.copy() for name, network in whole["network"].items()}
        found = {}
        for name, loss in self.algorithm.losses(networks, whole.get("target", {}), batch, randomness):
            weights = {layer: θ.requires_grad_() for layer, θ in networks[name].weights.items()}
            own = total(loss(networks[name]).values()).sum()
            found[name] = dict(zip(weights, torch.autograd.grad(own, list(weights.values())), strict=True))
        return found

    def change_masks(self, masks: Mapping[str, LayerTensors]) -> None:
        """Go on under other masks (K, in, out).

        Weights that grow begin at zero, as do their moments and targets. Moments are zero, too, of units of
        sparse networks that lead nowhere now, should they come back later.
        """
        self.hold(self.in_full(), masks)

    def whole(self, agent: int) -> dict[str, DenseNetwork]:
        """Agent `agent`'s networks in full, a stack of one."""
        return {name: network.agent(agent) for name, network in self.in_full()["network"].items()}

    def agent_state(self, agent: int) -> dict[str, Tensor]:
        """A copy, on the CPU, of all that agent `agent` needs to resume, by name: (1, …) each.

        Networks are in full, so that the agent may resume in a stack.
        """
        return {
            f"{kind}.{name}.{key}": tensor.cpu().clone()
            for kind, networks in self.in_full().items()
            for name, network in networks.items()
            for key, tensor in network.agent(agent).parameters().items()
        }

    def restore(
        self, agents: Sequence[Mapping[str, Tensor]], updates: int, masks: Mapping[str, LayerTensors] | None
    ) -> None:
        """Resume from the states of all K agents, which have made `updates` updates, under these masks."""
        whole: dict[str, dict[str, DenseNetwork]] = {}
        for kind, name, _ in self._kinds():
            prefix = f"{kind}.{name}."
            keys = [key for key in agents[0] if key.startswith(prefix)]
            own = {key.removeprefix(prefix): torch.cat([agent[key] for agent in agents]) for key in keys}
            whole.setdefault(kind, {})[name] = from_parameters(own)
        self.hold(whole, masks)
        for name, optimizer in self.optimizers.items():
            optimizer.restore_steps(self._steps(name, updates))

    def _optimizer(self, name: str, network: AnyNetwork) -> Adam:
        schedule = self.algorithm.schedules.get(name)
        if schedule and self.updates is None:
            raise ValueError("a learning rate with a schedule has to know the number of updates")
        steps = self._steps(name, self.updates or 1)
        factor = (lambda made: schedule(made / steps)) if schedule else None
        return Adam(network.parameters().values(), self.algorithm.config.learning_rate, factor)


def _masked(network: DenseNetwork, masks: LayerTensors | None) -> DenseNetwork:
    """The network with pruned weights zero; itself if it has no masks."""
    if masks is None:
        return network
    weights = network.weights
    return network.with_weights(
        {layer: weights[layer] * mask.to(weights[layer].device) for layer, mask in masks.items()}
    )
