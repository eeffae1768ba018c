import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

from singleshot.errors import UserError
from singleshot.rl.agents import Agent, AgentSpec, dense_masks, initial_networks, make_algorithm
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.rl.data.replay import Randomness
from singleshot.rl.environments import LOCOMOTION, Environment, make_environment
from singleshot.rl.evaluation.play import FIRST_EPISODE, Environments, evaluate, play

CONFIG = BCQConfig(evaluation_samples=2)


def make(seeds):
    algorithm = make_algorithm(AgentSpec("Hopper", "bcq", "dense", 0.0, 0), CONFIG, 11, 3)
    return algorithm, initial_networks(algorithm, seeds)


def one_by_one(algorithm, networks, randomness, where, episodes):
    """Returns and lengths by an ordinary loop per agent and episode, on the noise that it would get."""
    agents, steps = len(randomness.seeds), 1000
    noise = [randomness.normal(episodes, *algorithm.noise_shape) for _ in range(steps)]
    returns, lengths = np.zeros((agents, episodes)), np.zeros((agents, episodes), int)
    for agent in range(agents):
        own = {name: network.agent(agent) for name, network in networks.items()}
        for episode in range(episodes):
            environment = make_environment(LOCOMOTION[where])
            observation, _ = environment.reset(seed=FIRST_EPISODE + episode)
            ended = False
            while not ended:
                state = torch.tensor(observation, dtype=torch.float32)[None, None]
                step = lengths[agent, episode]
                action = algorithm.act(own, state, noise[step][agent, episode][None, None])[0, 0].numpy()
                observation, reward, terminated, truncated, _ = environment.step(action)
                returns[agent, episode] += reward
                lengths[agent, episode] += 1
                ended = terminated or truncated
    return returns, lengths


def test_hopper_episodes_end_one_by_one():
    algorithm, networks = make([0, 1])
    environments = Environments(LOCOMOTION["Hopper"], 2, 4)

    returns = play(algorithm, networks, environments, Randomness("evaluation", [0, 1], 5))

    randomness = Randomness("evaluation", [0, 1], 5)
    expected, lengths = one_by_one(algorithm, networks, randomness, "Hopper", episodes=4)
    assert len(set(lengths.flatten())) > 1, "episodes of different lengths"
    assert lengths.max() < 1000
    # Untrained agents fall within some dozens of steps, too soon for rounding to grow.
    np.testing.assert_allclose(returns, expected, rtol=1e-4)


def test_environments_can_be_used_again_and_agents_of_one_seed_get_the_same_returns():
    algorithm, networks = make([3, 3])
    environments = Environments(LOCOMOTION["Hopper"], 2, 2)
    first, again, other = (
        play(algorithm, networks, environments, Randomness("evaluation", [seed, seed])) for seed in (3, 3, 4)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    np.testing.assert_allclose(first[0], first[1], rtol=1e-5)


def test_evaluate_is_play_for_one_agent():
    algorithm, networks = make([0])
    agent = Agent(AgentSpec("Hopper", "bcq", "dense", 0.0, 0), algorithm, networks, dense_masks(algorithm))
    environments = Environments(LOCOMOTION["Hopper"], 1, 3)
    expected = play(algorithm, networks, environments, Randomness("evaluation", [7]))
    returns, episode = evaluate(agent, LOCOMOTION["Hopper"], episodes=3, seed=7)
    assert np.array_equal(returns, expected[0])
    assert episode.returns[-1] == pytest.approx(np.median(returns))
    assert len(episode.positions) == len(episode.rewards) + 1
    assert episode.fell


def test_an_agent_whose_weights_overflow_is_one_line():
    algorithm, networks = make([0])
    networks = {
        name: network.with_weights({layer: θ.sign() * 3e38 for layer, θ in network.weights.items()})
        for name, network in networks.items()
    }
    agent = Agent(AgentSpec("Hopper", "bcq", "dense", 0.0, 0), algorithm, networks, dense_masks(algorithm))
    with pytest.raises(UserError, match="acts by NaN or infinity"):
        evaluate(agent, LOCOMOTION["Hopper"], episodes=1)


@pytest.mark.parametrize("broken", ["reward", "state"])
def test_an_environment_that_answers_nan_is_named_with_episode_and_step(broken):
    class Broken(HopperEnv):
        def step(self, action):
            state, reward, *rest = super().step(action)
            if self.data.time > 0.03:  # from the fourth step on
                return state * (np.nan if broken == "state" else 1), reward * np.inf, *rest
            return state, reward, *rest

    gymnasium.register(f"Broken-{broken}-v0", Broken, max_episode_steps=100)
    algorithm, networks = make([0])
    environments = Environments(Environment(f"Broken-{broken}-v0"), 1, 2)
    with pytest.raises(UserError, match=f"Broken-{broken}-v0: step 4 of episode 0 "):
        play(algorithm, networks, environments, Randomness("evaluation", [0], 5))
