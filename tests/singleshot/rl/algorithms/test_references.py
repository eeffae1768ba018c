"""Each algorithm against itself written again: one agent, `nn.Linear`, Adam, float64."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

from singleshot.rl.agents import AgentSpec, initial_networks, make_algorithm
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.rl.algorithms.iql import IQLConfig
from singleshot.rl.algorithms.td3bc import TD3BCConfig
from singleshot.rl.data.replay import Batch, Randomness, ReplayBuffer
from singleshot.rl.training.learner import Learner

STATE, ACTION, BATCH = 11, 3, 256
UPDATES = 10
SCALE = 3
"""Factor of the initial weights, with which values and actions are large enough to reach all limits."""
TOLERANCE = 1e-5


def mlp(inputs, outputs, hidden=(256, 256)):
    sizes = (inputs, *hidden, outputs)
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1]).double()


class Reference:
    """What three algorithms have: an actor, twin critics and their targets."""

    limits = ()
    """Whether those of values and actions were reached on both sides."""

    def __init__(self, actor_inputs=STATE, hidden=(256, 256), lr=3e-4):
        self.lr, self.actor = lr, mlp(actor_inputs, ACTION, hidden)
        self.critics = nn.ModuleList([mlp(STATE + ACTION, 1, hidden), mlp(STATE + ACTION, 1, hidden)])
        self.mlps = {("actor", "pi"): self.actor} | {
            ("critic", f"q{i + 1}"): critic for i, critic in enumerate(self.critics)
        }

    def begin(self):
        """Call once the weights are in place."""
        self.actor_target, self.critics_target = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=self.lr)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=self.lr)

    def update_critics(self, s, a, y):
        sa = torch.cat([s, a], 1)
        loss = sum(nn.functional.mse_loss(critic(sa)[:, 0], y) for critic in self.critics)
        step(self.critic_optimizer, loss)
        return loss

    def linears(self):
        """Linear layers by the names that the project's networks use."""
        return {
            (network, f"{prefix}.{i}"): layer
            for (network, prefix), own in self.mlps.items()
            for i, layer in enumerate(list(own)[::2])
        }


class ReferenceTD3BC(Reference):
    def update(self, number, s, a, r, s2, alive, draw):
        with torch.no_grad():
            noise = draw(BATCH, ACTION)
            a2 = self.actor_target(s2).tanh() + (noise * 0.2).clamp(-0.5, 0.5)
            self.limits = {(noise.abs() > 2.5).any(), (a2.abs() > 1).any()}
            sa2 = torch.cat([s2, a2.clamp(-1, 1)], 1)
            values = torch.cat([critic(sa2) for critic in self.critics_target], 1)
            y = r + 0.99 * alive * values.min(1).values
        found = {"critic_loss": self.update_critics(s, a, y)}
        if number % 2 == 0:
            pi = self.actor(s).tanh()
            value = self.critics[0](torch.cat([s, pi], 1))
            weight = 2.5 / value.abs().mean().item()
            found["actor_loss"] = -weight * value.mean()
            found["cloning_loss"] = nn.functional.mse_loss(pi, a)
            step(self.actor_optimizer, found["actor_loss"] + found["cloning_loss"])
            follow(self.actor_target, self.actor)
            follow(self.critics_target, self.critics)
        return found


class ReferenceIQL(Reference):
    def __init__(self):
        super().__init__()
        self.value = mlp(STATE, 1)
        self.log_std = nn.Parameter(torch.zeros(ACTION, dtype=torch.float64))
        self.mlps |= {("value", "v"): self.value}

    def begin(self):
        super().begin()
        self.actor_optimizer = torch.optim.Adam([*self.actor.parameters(), self.log_std], lr=3e-4)
        self.value_optimizer = torch.optim.Adam(self.value.parameters(), lr=3e-4)

    def update(self, number, s, a, r, s2, alive, draw):
        with torch.no_grad():
            sa = torch.cat([s, a], 1)
            q = torch.cat([critic(sa) for critic in self.critics_target], 1).min(1).values
        u = q - self.value(s)[:, 0]
        value_loss = (torch.where(u > 0, 0.7, 0.3) * u**2).mean()
        step(self.value_optimizer, value_loss)

        with torch.no_grad():
            weight = torch.exp(3 * (q - self.value(s)[:, 0])).clamp(max=100)
            self.limits = {(weight == 100).any(), (weight < 100).any()}
        policy = Independent(Normal(self.actor(s).tanh(), self.log_std.clamp(-5, 2).exp()), 1)
        actor_loss = -(weight * policy.log_prob(a)).mean()
        self.actor_optimizer.param_groups[0]["lr"] = (
            3e-4 * 0.5 * (1 + math.cos(math.pi * (number - 1) / UPDATES))
        )
        step(self.actor_optimizer, actor_loss)

        with torch.no_grad():
            y = r + 0.99 * alive * self.value(s2)[:, 0]
        critic_loss = self.update_critics(s, a, y)
        follow(self.critics_target, self.critics)
        return {"value_loss": value_loss, "actor_loss": actor_loss, "critic_loss": critic_loss}


class ReferenceBC(Reference):
    def __init__(self):
        self.actor = mlp(STATE, ACTION, (64, 32))
        self.mlps = {("actor", "pi"): self.actor}

    def begin(self):
        self.optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-3)

    def update(self, number, s, a, r, s2, alive, draw):
        loss = nn.functional.mse_loss(self.actor(s).tanh(), a)
        step(self.optimizer, loss)
        return {"cloning_loss": loss}


class ReferenceVAE(nn.Module):
    """BC by a VAE."""

    limits = ()

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList([nn.Linear(STATE + ACTION, 64), nn.Linear(64, 32)])
        self.mean, self.log_std = nn.Linear(32, 2 * ACTION), nn.Linear(32, 2 * ACTION)
        sizes = (STATE + 2 * ACTION, 64, 32, ACTION)
        self.decoder = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        self.double()

    def begin(self):
        self.optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)

    def update(self, number, s, a, r, s2, alive, draw):
        h = torch.cat([s, a], 1)
        for layer in self.encoder:
            h = layer(h).relu()
        normal = Normal(self.mean(h), self.log_std(h).clamp(-4, 15).exp())
        prior = Normal(torch.zeros_like(normal.mean), torch.ones_like(normal.mean))
        kl = 0.5 * torch.distributions.kl_divergence(normal, prior).mean()
        decoded = self.decode(s, normal.mean + normal.stddev * draw(BATCH, 2 * ACTION))
        reconstruction = nn.functional.mse_loss(decoded, a)
        step(self.optimizer, reconstruction + kl)
        return {"reconstruction_loss": reconstruction, "kl_loss": kl}

    def decode(self, s, z):
        h = torch.cat([s, z], 1)
        for layer in self.decoder[:-1]:
            h = layer(h).relu()
        return self.decoder[-1](h).tanh()

    def linears(self):
        layers = self.named_modules()
        return {("vae", name): layer for name, layer in layers if isinstance(layer, nn.Linear)}

    def act(self, s, noises):
        return self.decode(s[None], noises[None].clamp(-0.25, 0.25))[0]


class ReferenceBCQ(Reference):
    def __init__(self):
        super().__init__(STATE + ACTION, (400, 300), lr=1e-3)
        self.vae = ReferenceVAE()

    def begin(self):
        super().begin()
        self.vae.begin()

    def perturbed(self, actor, s, z):
        a = self.vae.decode(s, z.clamp(-0.5, 0.5)).detach()
        return (a + 0.05 * actor(torch.cat([s, a], 1)).tanh()).clamp(-1, 1)

    def update(self, number, s, a, r, s2, alive, draw):
        losses = self.vae.update(number, s, a, r, s2, alive, draw)
        with torch.no_grad():
            s10, noises = s2.repeat_interleave(10, 0), draw(BATCH, 10, 2 * ACTION).flatten(0, 1)
            sa = torch.cat([s10, self.perturbed(self.actor_target, s10, noises)], 1)
            pairs = torch.cat([critic(sa) for critic in self.critics_target], 1).sort(1).values
            best = (0.75 * pairs[:, 0] + 0.25 * pairs[:, 1]).view(BATCH, 10).max(1).values
        losses["critic_loss"] = self.update_critics(s, a, r + 0.99 * alive * best)
        pi = self.perturbed(self.actor, s, draw(BATCH, 2 * ACTION))
        losses["actor_loss"] = -self.critics[0](torch.cat([s, pi], 1)).mean()
        step(self.actor_optimizer, losses["actor_loss"])
        follow(self.actor_target, self.actor)
        follow(self.critics_target, self.critics)
        return losses

    def act(self, s, noises):
        """The best of the sampled actions for one state."""
        repeated = s.expand(len(noises), -1)
        actions = self.perturbed(self.actor, repeated, noises)
        return actions[self.critics[0](torch.cat([repeated, actions], 1)).argmax()]

    def linears(self):
        return super().linears() | self.vae.linears()


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def follow(target, online):
    for own, other in zip(online.parameters(), target.parameters(), strict=True):
        other.data = 0.005 * own.data + 0.995 * other.data


def double(batch):
    return Batch(*(getattr(batch, name).double() for name in Batch.__dataclass_fields__))


def begin(name, config, kind, scale=SCALE):
    """A learner in float64, and a reference with the same initial weights."""
    algorithm = make_algorithm(AgentSpec("Hopper", name, "dense", 0.0, 0), config, 11, 3)
    networks = {
        name: network.map(lambda tensor: scale * tensor.double())
        for name, network in initial_networks(algorithm, [0]).items()
    }
    learner = Learner(networks, algorithm, None, updates=UPDATES)
    reference = kind()
    for (network, layer), module in reference.linears().items():
        module.weight.data = learner.networks[network].weights[layer][0].detach().T.clone()
        module.bias.data = learner.networks[network].biases[layer][0, 0].detach().clone()
    reference.begin()
    return learner, reference


def assert_same(networks, reference, modules):
    for (network, layer), module in modules.items():
        own = networks[network]
        torch.testing.assert_close(own.weights[layer][0].T, module.weight, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(own.biases[layer][0, 0], module.bias, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "config", "kind"),
    [
        ("td3bc", TD3BCConfig(), ReferenceTD3BC),
        ("iql", IQLConfig(), ReferenceIQL),
        ("bc", BCConfig(actor="mlp", hidden=(64, 32)), ReferenceBC),
        ("bc", BCConfig(hidden=(64, 32)), ReferenceVAE),
        ("bcq", BCQConfig(vae_hidden=(64, 32)), ReferenceBCQ),
    ],
)
def test_updates_equal_the_reference_s(name, config, kind, transitions):
    learner, reference = begin(name, config, kind)
    data, draws, again = ReplayBuffer(transitions), Randomness("training", [0]), Randomness("training", [0])
    first = {key: module.weight.detach().clone() for key, module in reference.linears().items()}

    for number in range(1, UPDATES + 1):
        batch = double(data.sample(draws, BATCH))
        losses = learner.update(batch, draws, whole=number % learner.algorithm.delay == 0)
        same = double(data.sample(again, BATCH))
        parts = (same.state, same.action, same.reward, same.next_state, same.not_done)
        draw = lambda *sizes: again.normal(*sizes)[0].double()  # noqa: E731
        expected = reference.update(number, *(part[0] for part in parts), draw)
        assert all(reference.limits), "limits have to be reached"
        assert losses.keys() == expected.keys()
        for term, value in expected.items():
            assert losses[term].item() == pytest.approx(value.item(), rel=TOLERANCE), (number, term)

    assert_same(learner.networks, reference, reference.linears())
    for key, module in reference.linears().items():  # each has moved by much more than the tolerance
        assert (module.weight - first[key]).abs().mean() > 50 * TOLERANCE, key
    if learner.targets:
        assert_same(learner.targets, reference, targets_of(reference, learner.targets))
    if name == "iql":
        log_std = learner.networks["actor"].biases["log_std"][0, 0]
        torch.testing.assert_close(log_std, reference.log_std, rtol=0, atol=TOLERANCE)
        assert (log_std.abs() > 50 * TOLERANCE).all()


def targets_of(reference, targets):
    online = {id(own): other for own, other in zip(reference.critics, reference.critics_target, strict=True)}
    online[id(reference.actor)] = reference.actor_target
    return {
        (network, f"{prefix}.{i}"): layer
        for (network, prefix), own in reference.mlps.items()
        if network in targets
        for i, layer in enumerate(list(online[id(own)])[::2])
    }


def test_agents_act_as_the_reference_does():
    """BC by the decoder, on a quarter of the prior."""
    for name, config, kind in (
        ("bcq", BCQConfig(vae_hidden=(64, 32), evaluation_samples=7), ReferenceBCQ),
        ("bc", BCConfig(hidden=(64, 32)), ReferenceVAE),
    ):
        learner, reference = begin(name, config, kind, scale=1)
        states, noise = torch.randn(1, 5, STATE), 3 * torch.randn(1, 5, *learner.algorithm.noise_shape)
        states, noise = states.double(), noise.double()
        actions = learner.algorithm.act(learner.networks, states, noise)
        for i in range(5):
            torch.testing.assert_close(actions[0, i], reference.act(states[0, i], noise[0, i]))
