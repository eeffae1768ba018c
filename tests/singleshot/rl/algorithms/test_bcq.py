"""BCQ and BC against the same algorithms written again: one agent, `nn.Linear`, `backward`, plain Adam."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from singleshot.rl.agents import AgentSpec, initial_networks, make_algorithm
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.rl.data.replay import Randomness, ReplayBuffer
from singleshot.rl.training.learner import Learner


class ReferenceVAE(nn.Module):
    def __init__(self, state_size, action_size):
        super().__init__()
        latent = 2 * action_size
        self.encoder = nn.ModuleList([nn.Linear(state_size + action_size, 750), nn.Linear(750, 750)])
        self.mean = nn.Linear(750, latent)
        self.log_std = nn.Linear(750, latent)
        self.decoder = nn.ModuleList(
            [nn.Linear(state_size + latent, 750), nn.Linear(750, 750), nn.Linear(750, action_size)]
        )

    def loss(self, state, action, noise):
        h = torch.cat([state, action], 1)
        for layer in self.encoder:
            h = F.relu(layer(h))
        normal = torch.distributions.Normal(self.mean(h), self.log_std(h).clamp(-4, 15).exp())
        prior = torch.distributions.Normal(torch.zeros_like(normal.mean), torch.ones_like(normal.mean))
        kl = torch.distributions.kl_divergence(normal, prior).mean()
        return F.mse_loss(self.decode(state, normal.mean + normal.stddev * noise), action), kl

    def decode(self, state, z):
        h = torch.cat([state, z], 1)
        for layer in self.decoder[:-1]:
            h = F.relu(layer(h))
        return torch.tanh(self.decoder[-1](h))


class MLP(nn.Sequential):
    def __init__(self, *sizes):
        layers = [module for a, b in itertools.pairwise(sizes) for module in (nn.Linear(a, b), nn.ReLU())]
        super().__init__(*layers[:-1])


class ReferenceBCQ:
    def __init__(self, state_size, action_size):
        self.vae = ReferenceVAE(state_size, action_size)
        self.actor = MLP(state_size + action_size, 400, 300, action_size)
        self.q1 = MLP(state_size + action_size, 400, 300, 1)
        self.q2 = MLP(state_size + action_size, 400, 300, 1)

    def begin(self):
        """Call once the weights are in place."""
        self.actor_target, self.q1_target, self.q2_target = (
            copy.deepcopy(m) for m in (self.actor, self.q1, self.q2)
        )
        self.vae_optimizer = torch.optim.Adam(self.vae.parameters(), lr=1e-3, foreach=False)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=1e-3, foreach=False)
        self.critic_optimizer = torch.optim.Adam(
            [*self.q1.parameters(), *self.q2.parameters()], lr=1e-3, foreach=False
        )

    def perturb(self, actor, state, action):
        return (action + 0.05 * torch.tanh(actor(torch.cat([state, action], 1)))).clamp(-1, 1)

    def update_vae(self, state, action, noise):
        reconstruction, kl = self.vae.loss(state, action, noise)
        self._step(self.vae_optimizer, reconstruction + 0.5 * kl)
        return reconstruction, kl

    def update(self, state, action, reward, next_state, not_done, vae_noise, target_noise, actor_noise):
        reconstruction, kl = self.update_vae(state, action, vae_noise)

        y = []
        with torch.no_grad():
            for s, r, alive, noises in zip(next_state, reward, not_done, target_noise, strict=True):
                values = []
                for noise in noises:  # one action at a time
                    z = noise.clamp(-0.5, 0.5)[None]
                    a = self.perturb(self.actor_target, s[None], self.vae.decode(s[None], z))
                    sa = torch.cat([s[None], a], 1)
                    pair = sorted([self.q1_target(sa).item(), self.q2_target(sa).item()])
                    values.append(0.75 * pair[0] + 0.25 * pair[1])
                y.append(r.item() + alive.item() * 0.99 * max(values))
        y = torch.tensor(y)[:, None]
        sa = torch.cat([state, action], 1)
        critic_loss = F.mse_loss(self.q1(sa), y) + F.mse_loss(self.q2(sa), y)
        self._step(self.critic_optimizer, critic_loss)

        sampled = self.vae.decode(state, actor_noise.clamp(-0.5, 0.5)).detach()
        perturbed = self.perturb(self.actor, state, sampled)
        actor_loss = -self.q1(torch.cat([state, perturbed], 1)).mean()
        self._step(self.actor_optimizer, actor_loss)

        for online, target in (
            (self.actor, self.actor_target),
            (self.q1, self.q1_target),
            (self.q2, self.q2_target),
        ):
            for own, other in zip(online.parameters(), target.parameters(), strict=True):
                other.data = 0.005 * own.data + 0.995 * other.data
        return {
            "reconstruction_loss": reconstruction,
            "kl_loss": 0.5 * kl,
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
        }

    def act(self, state, noises):
        """The best of the sampled actions for one state."""
        repeated = state[None].repeat(len(noises), 1)
        actions = self.perturb(self.actor, repeated, self.vae.decode(repeated, noises.clamp(-0.5, 0.5)))
        return actions[self.q1(torch.cat([repeated, actions], 1)).argmax()]

    def linears(self):
        """Linear layers by the names that the project's networks use."""
        named = {("vae", name): module for name, module in self.vae.named_modules()}
        for network, prefix, mlp in (
            ("actor", "pi", self.actor),
            ("critic", "q1", self.q1),
            ("critic", "q2", self.q2),
        ):
            named |= {(network, f"{prefix}.{i}"): module for i, module in enumerate(list(mlp)[::2])}
        return {key: module for key, module in named.items() if isinstance(module, nn.Linear)}

    @staticmethod
    def _step(optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def begin(algorithm, seed=0):
    """A learner, and a reference with the same initial weights."""
    learner = Learner(initial_networks(algorithm, [seed]), algorithm, None)
    reference = ReferenceBCQ(11, 3)
    for (network, layer), module in reference.linears().items():
        if network in learner.networks:
            module.weight.data = learner.networks[network].weights[layer][0].detach().T.clone()
            module.bias.data = learner.networks[network].biases[layer][0, 0].detach().clone()
    reference.begin()
    return learner, reference


def assert_same_weights(networks, reference, tolerance):
    for (network, layer), module in reference.linears().items():
        if network in networks:
            own = networks[network]
            torch.testing.assert_close(own.weights[layer][0].T, module.weight, rtol=0, atol=tolerance)
            torch.testing.assert_close(own.biases[layer][0, 0], module.bias, rtol=0, atol=tolerance)


@pytest.fixture
def data(transitions):
    return ReplayBuffer(transitions)


def test_bcq_updates_equal_the_reference_s(data):
    algorithm = make_algorithm(AgentSpec("Hopper", "bcq", "dense", 0.0, 0), BCQConfig(), 11, 3)
    learner, reference = begin(algorithm)
    draws, again = Randomness("training", [0]), Randomness("training", [0])

    for _ in range(3):
        losses = learner.update(data.sample(draws, 100), draws)
        batch = data.sample(again, 100)
        expected = reference.update(
            *(
                part[0]
                for part in (batch.state, batch.action, batch.reward, batch.next_state, batch.not_done)
            ),
            vae_noise=again.normal(100, 6)[0],
            target_noise=again.normal(100, 10, 6)[0],
            actor_noise=again.normal(100, 6)[0],
        )
        for name, value in expected.items():
            assert losses[name].item() == pytest.approx(value.item(), rel=1e-4, abs=1e-6), name

    # Adam moves each weight by about 1e-3 an update: 3e-5 is a hundredth of the way, since rounding can move
    # a tiny gradient, which Adam scales up, by much of itself.
    assert_same_weights(learner.networks, reference, tolerance=3e-5)
    for own, other in (
        (learner.targets["actor"].weights["pi.1"], reference.actor_target[2]),
        (learner.targets["critic"].weights["q1.0"], reference.q1_target[0]),
        (learner.targets["critic"].weights["q2.2"], reference.q2_target[4]),
    ):
        torch.testing.assert_close(own[0].T, other.weight, rtol=0, atol=1e-6)


def test_bc_updates_equal_the_reference_s(data):
    algorithm = make_algorithm(AgentSpec("Hopper", "bc", "dense", 0.0, 0), BCConfig(), 11, 3)
    learner, reference = begin(algorithm)
    draws, again = Randomness("training", [0]), Randomness("training", [0])

    for _ in range(5):
        losses = learner.update(data.sample(draws, 100), draws)
        batch = data.sample(again, 100)
        reconstruction, kl = reference.update_vae(batch.state[0], batch.action[0], again.normal(100, 6)[0])
        assert losses["reconstruction_loss"].item() == pytest.approx(reconstruction.item(), rel=1e-4)
        assert losses["kl_loss"].item() == pytest.approx(0.5 * kl.item(), rel=1e-4)

    assert_same_weights(learner.networks, reference, tolerance=5e-5)


def test_agents_act_as_the_reference_does():
    """BC by the decoder, on a quarter of the prior."""
    algorithm = make_algorithm(
        AgentSpec("Hopper", "bcq", "dense", 0.0, 0), BCQConfig(evaluation_samples=7), 11, 3
    )
    learner, reference = begin(algorithm)
    state, noise = torch.randn(1, 5, 11), torch.randn(1, 5, *algorithm.noise_shape)
    action = algorithm.act(learner.networks, state, noise)
    for i in range(5):
        torch.testing.assert_close(action[0, i], reference.act(state[0, i], noise[0, i]))

    algorithm = make_algorithm(AgentSpec("Hopper", "bc", "dense", 0.0, 0), BCConfig(), 11, 3)
    learner, reference = begin(algorithm)
    noise = 3 * torch.randn(1, 5, *algorithm.noise_shape)
    action = algorithm.act(learner.networks, state, noise)
    torch.testing.assert_close(action[0], reference.vae.decode(state[0], noise[0].clip(-0.25, 0.25)))
