"""Policies of trained agents as plain modules: for one agent what `tasks.offline_rl` computes for many."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tasks.deployment.network import Network
from tasks.deployment.onnx_model import Form, GraphInput
from tasks.errors import UserError
from tasks.offline_rl import vae
from tasks.offline_rl.agents import DENSE, Agent, AgentSpec, load_agent
from tasks.offline_rl.algorithms import bc, bcq
from tasks.offline_rl.algorithms.bcq import BCQConfig
from tasks.sparse.compaction import Layer, compact

STATES = 1.0
"""Within ± this are states to compare policies on. Some of what MuJoCo gives is larger, joints' velocities up
to 30, but with all of a state uniform in ± 10, 40 to 90 % of a trained policy's actions are at the ends of
their range, where no error shows."""
LATENTS = 1.0
"""Likewise; within ± 1, about as many as of standard normal numbers are outside of what policies clamp to."""


class BCPolicy(nn.Module):
    """π(s) = D(s, z), see :class:`tasks.offline_rl.algorithms.bc.BC`."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, state: Tensor, latents: Tensor) -> Tensor:
        """Actions (batch, action) for `state` (batch, state), standard normal `latents` (batch, latent)."""
        z = latents.clamp(-bc.Z_LIMIT, bc.Z_LIMIT)
        action: Tensor = self.decoder(torch.cat([state, z], dim=1)).tanh()
        return action


class BCQPolicy(nn.Module):
    """π(s) = argmax over ã_i of Q_θ1(s, ã_i), ã_i = a_i + ξ_φ(s, a_i, Φ), a_i = D(s, z_i).

    See :class:`tasks.offline_rl.algorithms.bcq.BCQ`. The VAE's encoder and the second critic have no part in
    it.
    """

    def __init__(self, decoder: nn.Module, actor: nn.Module, critic: nn.Module, phi: float) -> None:
        super().__init__()
        self.decoder, self.actor, self.critic = decoder, actor, critic
        self.phi = phi

    def forward(self, state: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (batch, action), and which of the samples each one is, (batch,) int64.

        `state` is (batch, state), `latents` (batch, samples, latent), standard normal.
        """
        action, value = self.candidates(state, latents)
        choice = value.argmax(dim=1)
        best = choice[:, None, None].expand(-1, 1, action.shape[2])
        return action.gather(1, best).squeeze(1), choice

    def candidates(self, state: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        """The actions to choose from, (batch, samples, action), and the critic's values, (batch, samples)."""
        samples = latents.shape[1]
        # Matrices have two axes, as runtimes fuse product, bias and ReLU of no others. With three, and the
        # first layers' states multiplied once rather than once a sample, onnxruntime takes 53 instead of
        # 43 ms for a batch of 256, and no less for smaller ones.
        state = state[:, None].expand(-1, samples, -1).flatten(0, 1)
        z = latents.flatten(0, 1).clamp(-bcq.Z_LIMIT, bcq.Z_LIMIT)
        action = self.decoder(torch.cat([state, z], dim=1)).tanh()
        ξ = self.phi * self.actor(torch.cat([state, action], dim=1)).tanh()
        action = (action + ξ).clamp(-1, 1)
        value = self.critic(torch.cat([state, action], dim=1)).squeeze(1)
        return action.unflatten(0, (-1, samples)), value.unflatten(0, (-1, samples))


def forms_of(agent: AgentSpec) -> tuple[Form, ...]:
    """What an agent's policy can be exported as."""
    return ("dense",) if agent.pruner == DENSE else ("masked", "compacted")


def open_policy(source: Path, form: Form) -> Network:
    """The policy of the agent that `source` holds.

    Raises:
        UserError: the file is missing, damaged or no agent's, or the agent has no such form.
    """
    agent = load_agent(source)
    forms = forms_of(agent.spec)
    if form not in forms:
        raise UserError(f"{source}: {agent.spec} has no {form} form; ask for {' or '.join(forms)}")
    size = agent.algorithm.latent_size
    state_size = agent.algorithm.layers["vae"]["decoder.0"][0] - size
    details: dict[str, Any] = {"task": agent.spec.task, "algorithm": agent.spec.algorithm}
    if isinstance(agent.config, BCQConfig):
        latents = GraphInput("latents", ("batch", "samples", size), -LATENTS, LATENTS)
        outputs: tuple[str, ...] = ("action", "choice")
        details |= {"samples": agent.config.evaluation_samples, "latent_size": size}
    else:
        latents, outputs = GraphInput("latents", ("batch", size), -LATENTS, LATENTS), ("action",)
    return Network(
        kind="policy",
        form=form,
        module=make_policy(agent, compacted=form == "compacted"),
        inputs=(GraphInput("state", ("batch", state_size), -STATES, STATES), latents),
        outputs=outputs,
        sparsity=agent.spec.sparsity,
        details=details,
    )


def make_policy(agent: Agent, compacted: bool = False) -> BCPolicy | BCQPolicy:
    """A trained agent's policy, for inference; `compacted`, without the hidden units it can do without."""

    def mlp(network: str, layers: Sequence[str]) -> nn.Module:
        masked = masked_layers(agent, network, layers)
        return sequential(compact(masked) if compacted else masked)

    decoder = mlp("vae", vae.DECODER)
    if not isinstance(agent.config, BCQConfig):
        return BCPolicy(decoder).eval()
    return BCQPolicy(decoder, mlp("actor", bcq.ACTOR), mlp("critic", bcq.Q1), agent.config.phi).eval()


def masked_layers(agent: Agent, network: str, layers: Sequence[str]) -> list[Layer]:
    """Of one of an agent's networks, pruned weights as zeros."""
    weights, biases = agent.networks[network].weights, agent.networks[network].biases
    return [
        Layer(weights[layer][0].T * agent.masks[network][layer], biases[layer].flatten()) for layer in layers
    ]


def sequential(layers: Sequence[Layer]) -> nn.Sequential:
    """A perceptron, with ReLU between its layers."""
    modules: list[nn.Module] = []
    for layer in layers:
        outputs, inputs = layer.weight.shape
        linear = nn.Linear(inputs, outputs)
        linear.load_state_dict({"weight": layer.weight, "bias": layer.bias})
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])
