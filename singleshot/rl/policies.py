"""Policies of trained agents as plain modules, for one agent; `singleshot.rl` computes many at once."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from singleshot.io.onnx_model import Form, GraphCard, GraphInput
from singleshot.io.to_onnx import Network
from singleshot.pruning.variant import DENSE, SMALL
from singleshot.rl.actions import ActionBounds
from singleshot.rl.agents import Agent, AgentSpec
from singleshot.rl.algorithm import Policy
from singleshot.sparse.compaction import Layer, without_dead_units

STATES = 1.0
"""States on which policies are compared are within ± this. Some of MuJoCo's numbers are larger, e.g. joints'
velocities up to 30. But with states uniform in ± 10, 40 to 90 % of a trained policy's actions are at the ends
of their range, where no error shows."""
LATENTS = 1.0
"""Latents are within ± this. About as many of them as of standard normal numbers exceed the limit to which
policies clamp."""

LATENT_MEANING = (
    "Standard normal numbers, new ones for each call; or zeros for actions that depend on the state alone."
)


def forms_of(agent: AgentSpec) -> tuple[Form, ...]:
    """Forms in which an agent's policy can be exported."""
    return ("dense",) if agent.pruner in (DENSE, SMALL) else ("masked", "compacted")


def policy_network(agent: Agent, form: Form) -> Network:
    """A trained agent's policy, which returns actions within the agent's bounds."""
    algorithm = agent.algorithm
    module = make_policy(agent, compacted=form == "compacted")
    inputs = [GraphInput("state", ("batch", algorithm.state_size), -STATES, STATES)]
    details: dict[str, Any] = {
        "environment": agent.spec.environment,
        "algorithm": agent.spec.algorithm,
        "config": asdict(algorithm.config),
        "action_size": algorithm.action_size,
        "bounds": asdict(agent.bounds) if agent.bounds else None,
        "environment_spec": asdict(agent.environment) if agent.environment else None,
    }
    normalises = " The graph's first layers normalise them." if algorithm.config.normalize_states else ""
    range_of_actions = "within" if agent.bounds else "from -1 to 1,"
    meanings = {
        "state": f"Observations as the environment gives them, a row each.{normalises}",
        "action": f"Actions {range_of_actions} the environment's bounds, a row for each state.",
    }
    match algorithm.noise_shape:
        case (size,):
            meanings["latents"] = LATENT_MEANING
            inputs.append(GraphInput("latents", ("batch", size), -LATENTS, LATENTS))
        case (samples, size):
            meanings["latents"] = f"{LATENT_MEANING} The agent was evaluated with {samples} samples a state."
            meanings["choice"] = (
                "Index of the sample whose action has the highest value; its action is the output `action`."
            )
            inputs.append(GraphInput("latents", ("batch", "samples", size), -LATENTS, LATENTS))
            details |= {"samples": samples, "latent_size": size}
    card = GraphCard(
        kind="policy",
        form=form,
        sparsity=0.0 if form == "dense" else agent.spec.sparsity,
        inputs=tuple(inputs),
        outputs=module.outputs,
        details=details,
        meanings=meanings,
    )
    return Network(module, card)


def make_policy(agent: Agent, compacted: bool = False) -> Policy:
    """A trained agent's policy, for inference; if `compacted`, without the hidden units it doesn't need."""

    def perceptron(network: str, layers: Sequence[str]) -> nn.Module:
        weights, biases = agent.networks[network].weights, agent.networks[network].biases
        masked = [
            Layer(weights[layer][0].T * agent.masks[network][layer], biases[layer].flatten())
            for layer in layers
        ]
        modules: list[nn.Module] = []
        for weight, bias in without_dead_units(masked) if compacted else masked:
            linear = nn.Linear(weight.shape[1], weight.shape[0])
            linear.load_state_dict({"weight": weight, "bias": bias})
            modules += [linear, nn.ReLU()]
        return nn.Sequential(*modules[:-1])

    policy = agent.algorithm.policy(perceptron)
    return (_BoundedPolicy(policy, agent.bounds) if agent.bounds else policy).eval()


class _BoundedPolicy(Policy):
    """A policy whose actions are scaled from [-1, 1] to bounds."""

    def __init__(self, policy: Policy, bounds: ActionBounds) -> None:
        super().__init__()
        self.policy, self.outputs = policy, policy.outputs  # type: ignore[misc]
        self.scale: Tensor
        self.offset: Tensor
        self.register_buffer("scale", torch.tensor(bounds.half, dtype=torch.float32))
        self.register_buffer("offset", torch.tensor(bounds.middle, dtype=torch.float32))

    def candidates(self, *inputs: Tensor) -> tuple[Tensor, Tensor] | None:
        """The policy's candidates, within the bounds."""
        if found := self.policy.candidates(*inputs):
            return found[0] * self.scale + self.offset, found[1]
        return None

    def forward(self, state: Tensor, latents: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        """The policy's outputs, of which the first is actions. Policies that sample take `latents`."""
        outputs = self.policy(state) if latents is None else self.policy(state, latents)
        if isinstance(outputs, tuple):
            return (outputs[0] * self.scale + self.offset, *outputs[1:])
        scaled: Tensor = outputs * self.scale + self.offset
        return scaled
