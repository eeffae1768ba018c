"""`singleshot.rl` as a notebook uses it: arrays in, an agent out, no file of the repository."""

import inspect
import re
import runpy
import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace
from typing import get_type_hints

import gymnasium
import mypy.api
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import singleshot
from singleshot.errors import UserError
from singleshot.export.rollout import play_onnx
from singleshot.rl import agents
from singleshot.rl.agents import AgentSpec, dense_masks, make_algorithm
from singleshot.rl.algorithm import algorithm_class
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.data.replay import ReplayBuffer
from singleshot.rl.environments import Environment
from singleshot.rl.evaluation.play import FIRST_EPISODE, heldout_losses
from singleshot.rl.scripts import TrainableAgent
from singleshot.rl.training.stack import Member, Stack

N, STATES, ACTIONS = 300, 5, 2
ALGORITHMS = ("BC", "BCQ", "TD3BC", "IQL")


def arrays(low=-3.0, high=1.0, n=N):
    draw = np.random.default_rng(0)
    states = draw.normal(size=(n + 1, STATES)) * 10
    actions = draw.uniform(low, high, (n, ACTIONS))
    return states[:-1], actions, draw.normal(size=n), states[1:], draw.random(n) < 0.05


@pytest.fixture(scope="module")
def data():
    return singleshot.rl.Dataset(*arrays(), action_low=-3, action_high=1)


def made(name, data, **settings):
    return getattr(singleshot.rl, name)(data, batch_size=20, **settings)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_agent_is_pruned_trained_saved_and_exported(name, data, tmp_path):
    agent = made(name, data, normalize_states=True).prune("snip", 0.9).fit(30, progress=False)
    assert agent.sparsity == pytest.approx(0.9, abs=1e-4)
    kept = {name: int(mask.sum()) for name, mask in agent.masks.items() if mask.size}
    assert kept == {f"{each.network}.{each.layer}": each.weights_kept for each in agent.layers}
    assert len(agent.losses["update"]) == 30
    assert all(len(values) == 30 for values in agent.losses.values())

    states = data.transitions.observations[:7]
    agent.save(tmp_path / "agent.safetensors")
    loaded = singleshot.rl.Agent.load(tmp_path / "agent.safetensors")
    actions = agent.act(states)
    assert actions.shape == (7, ACTIONS)
    assert actions.min() >= -3
    assert actions.max() <= 1
    np.testing.assert_array_equal(actions, loaded.act(states))
    assert agent.act(states[0]).shape == (ACTIONS,)

    agent.export(tmp_path / "agent.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "agent.onnx")
    inputs = {each.name: each.shape for each in session.get_inputs()}
    feeds = {"state": states}
    if "latents" in inputs:  # zeros: the mean of the prior, so that nothing is sampled
        latents = [7, *(10 if isinstance(size, str) else size for size in inputs["latents"][1:])]
        feeds["latents"] = np.zeros(latents, np.float32)
    exported = session.run(["action"], feeds)[0]
    algorithm, own = agent.agent.algorithm, agent.agent
    noise = torch.zeros(1, 7, *algorithm.noise_shape)
    unit = algorithm.act(own.networks, torch.from_numpy(states)[None], noise)[0].numpy()
    np.testing.assert_allclose(exported, unit * 2 - 1, atol=1e-4)  # [-1, 1] to [-3, 1], by hand


def test_an_agent_is_the_one_that_a_sweep_trains(data):
    own = made("BC", data, seed=3).fit(20, progress=False)
    config = BCConfig(batch_size=20)
    spec = AgentSpec("any", "bc", "dense", 0.0, 3)
    algorithm = make_algorithm(spec, config, STATES, ACTIONS)
    member = Member(spec, dense_masks(algorithm))
    stack = Stack([member], algorithm, ReplayBuffer(data.transitions), 20)
    stack.train_until(20)
    for layer, weights in stack.agent(0).networks["vae"].weights.items():
        assert torch.equal(own.agent.networks["vae"].weights[layer], weights)


def test_masks_may_be_scored_on_other_states_than_those_of_the_training(data):
    """An agent that trains on raw states gets the masks of one that trains on normalised states."""
    raw = made("BC", data).prune("snip", 0.9)
    normalized = made("BC", data, normalize_states=True).prune("snip", 0.9)
    mixed = made("BC", data).prune("snip", 0.9, normalize_states=True)
    assert all((mask == normalized.masks[name]).all() for name, mask in mixed.masks.items())
    assert any((mask != raw.masks[name]).any() for name, mask in mixed.masks.items())


def test_behaviour_cloning_finds_the_actions_of_its_data():
    """a = (3 s_1, 100 s_2) on actions of other ranges than [-1, 1]."""
    draw = np.random.default_rng(1)
    states = draw.uniform(-1, 1, (2001, 2)).astype(np.float32)
    actions = states[:-1] * [3, 100]
    data = singleshot.rl.Dataset(states[:-1], actions, np.zeros(2000), states[1:], np.zeros(2000))
    agent = singleshot.rl.TD3BC(data, alpha=1e-3).fit(600, progress=False)
    error = np.abs(agent.act(states[:-1]) - actions).mean(axis=0)
    assert error[0] < 0.3
    assert error[1] < 10
    held_out = heldout_losses(agent.agent, data.transitions)
    assert held_out["action_error"] == pytest.approx(
        np.square((agent.act(states[:-1]) - actions) / [3, 100]).mean(), rel=0.02
    )


def test_masks_that_change_in_training_compete_where_the_scope_says():
    data, kept, total = singleshot.rl.Dataset(*arrays()), Counter(), Counter()
    agent = singleshot.rl.BC(data).prune("finetuned", 0.9, scope="network").fit(20, progress=False)
    for layer in agent.layers:
        kept[layer.part] += layer.weights_kept
        total[layer.part] += layer.weights_total
    assert kept.total() == round(0.1 * total.total())
    assert kept["encoder"] != round(0.1 * total["encoder"])


def test_actions_are_scaled_from_the_data_if_no_bounds_are_given():
    states, _, rewards, following, terminals = arrays(n=3)
    actions = np.array([[0, 5], [10, 5], [4, 5]])
    data = singleshot.rl.Dataset(states, actions, rewards, following, terminals)
    assert data.transitions.actions.tolist() == [[-1, 0], [1, 0], [pytest.approx(-0.2), 0]]
    unit = singleshot.rl.Dataset(states, actions / 20, rewards, following, terminals)
    assert unit.transitions.actions.tolist() == (actions / 20).astype(np.float32).tolist()


@pytest.mark.parametrize("torque", [0.5, 1.5])  # Pendulum's own are up to 2
def test_an_evaluation_plays_what_act_says_whatever_bounds_the_data_has(tmp_path, torque):
    generator = np.random.default_rng(0)
    states, actions = generator.normal(size=(50, 3)), generator.uniform(-torque, torque, (50, 1))
    data = singleshot.rl.Dataset(states, actions, np.zeros(50), states, np.zeros(50))
    agent = singleshot.rl.TD3BC(data).fit(20, progress=False)
    environment, total = gymnasium.make("Pendulum-v1"), 0.0
    state, _ = environment.reset(seed=FIRST_EPISODE)
    for _ in range(200):
        state, reward, *_ = environment.step(agent.act(np.float32(state)))
        total += reward
    assert agent.evaluate("Pendulum-v1", episodes=1)[0] == pytest.approx(total, rel=1e-4)
    agent.export(tmp_path / "agent.onnx")
    played = play_onnx(tmp_path / "agent.onnx", Environment("Pendulum-v1"), episodes=1)
    assert played[0] == pytest.approx(total, rel=1e-4)


def test_an_environment_that_may_never_end_is_told(data, caplog, monkeypatch):
    inverted_pendulum = gymnasium.spec("InvertedPendulum-v5").entry_point
    endless = gymnasium.envs.registration.EnvSpec("Endless-v0", entry_point=inverted_pendulum)
    monkeypatch.setitem(gymnasium.registry, "Endless-v0", endless)
    with pytest.raises(UserError):  # its sizes are others
        made("BC", data).fit(1, progress=False).evaluate("Endless-v0", 1)
    assert "Endless has no time limit" in caplog.text


def test_an_agent_is_evaluated_in_an_environment_of_its_sizes(data):
    states, rest = np.eye(9, 4), np.zeros(9)
    own = singleshot.rl.Dataset(states, rest, rest, states, rest, action_low=-3, action_high=3)
    returns = made("TD3BC", own).fit(1, progress=False).evaluate("InvertedPendulum-v5", episodes=3)
    assert returns.shape == (3,)
    assert (returns >= 1).all()
    with pytest.raises(UserError, match="17 and 6 coordinates, the agent's 5 and 2"):
        made("BC", data).fit(1, progress=False).evaluate("HalfCheetah-v5")


def test_a_function_of_ones_own_prunes_an_agent(data, tmp_path):
    """Scores are the weights themselves: of a layer, those above a threshold are kept."""

    def own_score(objective, weights):
        return dict(weights)

    agent = made("TD3BC", data, seed=4).prune(own_score, 0.75, scope="layer").fit(1, progress=False)
    assert repr(agent) == "TD3BC, own_score 0.75"
    layers = agents.initial_networks(agent.agent.algorithm, [4])["actor"].weights
    for name, weights in layers.items():
        values, kept = weights[0].T.numpy(), agent.masks[f"actor.{name}"]
        assert values[kept].min() > values[~kept].max()
    agent.save(tmp_path / "agent.safetensors")
    assert singleshot.rl.Agent.load(tmp_path / "agent.safetensors").agent.spec.pruner == "own_score"


def test_the_shipped_agent_runs_fast():
    agent = singleshot.rl.Agent.load("halfcheetah-snip")
    assert (agent.sparsity, agent.act(np.zeros(17)).shape) == (pytest.approx(0.95, abs=1e-4), (6,))
    environment = replace(agent.agent.environment, time_limit=200)
    assert agent.evaluate(environment, 1) > 1500  # of 11,000 in 1,000 steps, a random policy has -280


def test_help_lists_hyper_parameters_and_a_star_imports_the_names_for_notebooks():
    class Own(TrainableAgent):
        name = "td3bc"

    for kind in (singleshot.rl.TD3BC, Own):
        assert "`batch_size=" in kind.__doc__
        assert "`alpha=2.5`" in kind.__doc__
    assert str(inspect.signature(singleshot.rl.Dataset)).startswith("(observations: 'ArrayLike', actions")
    names = {}
    exec("from singleshot.rl import *", names)
    assert {*ALGORITHMS, "Agent", "Dataset"} <= set(names)


def test_type_checkers_know_the_hyper_parameters_with_their_types_and_defaults():
    stubs = runpy.run_path(singleshot.rl.__file__ + "i")
    for name in ALGORITHMS:
        config = algorithm_class(name.lower()).config_type
        stub, types = list(inspect.signature(stubs[name]).parameters.values()), get_type_hints(config)
        expected = [(field.name, types[field.name], field.default) for field in fields(config)]
        assert [(each.name, each.annotation, each.default) for each in stub[3:]] == expected


@pytest.mark.slow
def test_mypy_finds_hyper_parameters_of_the_wrong_name_or_type(tmp_path):
    calls = ("learning_rate=0.1", "learning_rat=1", 'learning_rate="x"')
    (tmp_path / "own.py").write_text(
        "import singleshot\ndata = singleshot.rl.Dataset.d4rl('x')\n"
        + "".join(f"singleshot.rl.BC(data, {call}).fit(3)\n" for call in calls)
    )
    said, _, _ = mypy.api.run(["--strict", "--follow-imports=silent", str(tmp_path / "own.py")])
    assert re.findall(r"own.py:(\d+): error: .*\[(.+)\]", said) == [("4", "call-arg"), ("5", "arg-type")]


def test_an_interrupted_fit_goes_on_to_the_same_agent(data, monkeypatch):
    through = made("BC", data, hidden=(64, 64)).prune("rigl", 0.8).fit(250, progress=False)
    stopped = made("BC", data, hidden=(64, 64)).prune("rigl", 0.8)
    train, stops = Stack.train_until, []

    def interrupted(self, update):
        train(self, update)
        stops.append(update)
        if len(stops) == 60:  # in the middle: what it has made since 100 is lost
            raise KeyboardInterrupt

    monkeypatch.setattr(Stack, "train_until", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(250, progress=False)
    stopped.fit(250, progress=False)
    assert stops[60] == 102
    assert stopped.losses == through.losses
    for layer, weights in through.agent.networks["vae"].weights.items():
        assert torch.equal(stopped.agent.networks["vae"].weights[layer], weights)


@pytest.mark.parametrize("name", ["BC", "TD3BC"])
def test_more_updates_are_as_if_all_had_been_asked_for_at_once(name, data):
    own = {"hidden": (16, 16), "normalize_states": True}
    at_once = made(name, data, **own).prune("snip", 0.5).fit(15, progress=False)
    continued = made(name, data, **own).prune("snip", 0.5).fit(9, progress=False)
    sampled = continued.act(np.ones((2, STATES)))
    assert (sampled[0] == sampled[1]).all() == (name == "TD3BC")
    continued.fit(6, progress=False)
    after, expected = (each.act(np.ones(STATES), deterministic=True) for each in (continued, at_once))
    np.testing.assert_array_equal(after, expected)
    assert str(continued.losses) == str(at_once.losses)  # as NaN is not NaN


@pytest.mark.parametrize("pruner", ["gradual", "rigl"])
def test_a_loaded_agent_is_trained_on_with_its_networks_and_masks(pruner, data, tmp_path):
    tiny = {"hidden": (16, 16), "normalize_states": True, "learning_rate": 1e-9}
    agent = made("TD3BC", data, **tiny).prune(pruner, 0.8).fit(20, progress=False)
    agent.save(tmp_path / "agent.safetensors")
    loaded = singleshot.rl.Agent.load(tmp_path)
    with pytest.raises(UserError, match="no data"):
        loaded.fit(5)
    states, others = data.transitions.observations, arrays(n=50)
    loaded.fit(250, singleshot.rl.Dataset(*others, action_low=-3, action_high=1), progress=False)
    np.testing.assert_allclose(loaded.act(states), agent.act(states), atol=1e-3)  # so small are its steps
    for name, mask in agent.masks.items():
        np.testing.assert_array_equal(loaded.masks[name], mask)
    assert loaded.losses["update"][-1] == 250
    with pytest.raises(UserError, match=r"action_low=\(-3.0, -3.0\), action_high=\(1.0, 1.0\)"):
        loaded.fit(1, singleshot.rl.Dataset(*others))


def test_arrays_of_any_memory_are_copied_and_columns_count_as_numbers_or_vectors(data):
    states, actions, rewards, following, _ = arrays(low=-1, n=4)
    flat = singleshot.rl.Dataset(states, actions, rewards, following, [0, 0, 1, 0]).transitions
    flags, tensor = np.array([[0.0], [0.0], [1.0], [0.0]]), torch.tensor(states, requires_grad=True)
    given = [np.asfortranarray(each, np.float32) for each in (actions, rewards[:, None], following)]
    column = singleshot.rl.Dataset(tensor, *given, flags).transitions
    for each in given:
        each[:] = 9
    assert flat.terminals.tolist() == column.terminals.tolist() == [False, False, True, False]
    for name in ("observations", "actions", "rewards", "next_observations"):
        np.testing.assert_array_equal(getattr(flat, name), getattr(column, name))
    numbers = np.arange(5) / 10
    single = singleshot.rl.Dataset(numbers[:-1], numbers[1:] * 9, rewards, numbers[1:], flags).transitions
    assert (single.state_size, single.action_size) == (1, 1)
    assert single.actions[:, 0].tolist() == [-1, pytest.approx(-1 / 3), pytest.approx(1 / 3), 1]


def test_an_agent_is_written_to_a_new_folder_but_not_over_a_folder(data, tmp_path):
    agent = made("TD3BC", data).prune("erk", 0.5).fit(1, progress=False)
    for write in (agent.save, agent.export):
        for path, named in ((tmp_path, "a folder"), (f"{__file__}/agent", "written")):
            with pytest.raises(UserError) as caught:
                write(path)
            assert str(path) in str(caught.value)
            assert named in str(caught.value)
    agent.save(tmp_path / "a/b/agent.safetensors")
    agent.export(tmp_path / "agent.onnx", opset=25)
    assert onnx.load(tmp_path / "agent.onnx").opset_import[0].version == 25
    loaded = singleshot.rl.Agent.load(tmp_path / "a/b")
    np.testing.assert_array_equal(loaded.act(np.ones(STATES)), agent.act(np.ones(STATES)))
    assert repr(loaded) == repr(agent) == "TD3BC, erk 0.5"


@pytest.mark.filterwarnings("error")
def test_mistakes_are_one_line(data, caplog):
    """And name the argument or the array, and its value."""
    columns = ("observations", "actions", "rewards", "next_observations", "terminals")
    given = dict(zip(columns, arrays(), strict=True))
    states, rewards = given["observations"], given["rewards"]
    holes = states.copy()
    holes[3, 1] = np.nan
    trained = made("BC", data).fit(1, progress=False)
    other = singleshot.rl.Dataset(np.eye(2), np.eye(2), [0.0, 1.0], np.eye(2), [0, 1])

    def make(**changed):
        return lambda: singleshot.rl.Dataset(*(given | changed).values())

    def bounds(**given):
        return lambda: singleshot.rl.Dataset(*arrays(), **given)

    def learn(algorithm="BC", **settings):
        return lambda: made(algorithm, data, **settings)

    refused = {
        "'actions' has shape (299, 2), the rest has 300 rows": make(actions=given["actions"][1:]),
        "'observations' has shape (301, 5), the rest has 300 rows": make(observations=states[[*range(N), 0]]),
        "(300, 2)": make(next_observations=given["next_observations"][:, :2]),
        "'rewards' is": make(rewards=[[1], [1, 2]]),
        "'observations' holds nan at (3, 1)": make(observations=holes),
        "'rewards' has masked": make(rewards=np.ma.array(rewards, mask=np.arange(N) == 7)),
        "'actions' reach 1e+24": make(actions=given["actions"] * 0 - 1e24),
        "'terminals' holds 0.5 at (0,)": make(terminals=[0.5] * N),
        "no transition": make(**{name: array[:0] for name, array in given.items()}),
        "widen action_low": bounds(action_low=-1, action_high=1),
        "beyond 1e+18": bounds(action_low=-1e308, action_high=1.7e308),
        "give both": bounds(action_low=-1),
        "nope.hdf5": lambda: singleshot.rl.Dataset.d4rl("nope.hdf5"),
        "'observations' is [[1, 2], [1]]": lambda: trained.act([[1, 2], [1]]),
        "shape (3,): this agent takes (5,)": lambda: trained.act([1, 2, 3]),
        "observations reach nan": lambda: trained.act(holes[3]),
        "observations reach 1e+39": lambda: trained.act([[0.0] * STATES, [-1e39] * STATES]),
        "did you mean learning_rate": learn(learning_rat=1),
        "discount is 2": learn("BCQ", discount=2),
        "learning_rate is inf": learn(learning_rate=np.inf),
        "data is array": lambda: singleshot.rl.BC(states),
        "device is gpu": learn(device="gpu"),
        "device is cuda:99": learn(device="cuda:99"),
        "hidden is [128]; give 2 entries": learn(hidden=[128]),
        "less than 1 (95 % is 0.95)": lambda: made("BC", data).prune("snip", 95),
        "agents choose vectors": lambda: trained.evaluate("CartPole-v1"),
        "'snap'": lambda: made("BC", data).prune("snap", 0.5),
        "prune: iterations is 0": lambda: made("BC", data).prune("snip", 0.9, iterations=0),
        "prune before fit": lambda: trained.prune("snip", 0.5),
        "it takes states of 5 numbers": lambda: trained.fit(5, other),
        "updates is 2.5": lambda: made("BC", data).fit(2.5),
        "has not been trained": lambda: made("BC", data).act(states),
        "environment is 3": lambda: trained.evaluate(3),
        "nope: no such file": lambda: singleshot.rl.Agent.load("nope"),
        "opset is 99": lambda: trained.export("agent.onnx", opset=99),
    }
    for named, mistake in refused.items():
        with pytest.raises(UserError) as caught:
            mistake()
        assert named in str(caught.value)
        assert "\n" not in str(caught.value)
    assert np.isfinite(trained.act([1e6] * STATES)).all()
    singleshot.rl.Dataset(*(given | {"rewards": rewards * 0}).values())
    assert "Dataset: used, though all 'rewards' are 0" in caplog.text
    made("IQL", data).prune("snip", 0.9)
    assert "log_std" not in caplog.text  # a layer without weights


def test_an_environment_of_ones_own_is_played_as_it_is():
    """A step's reward is -0.1·a² where running counts nothing, and an episode has 3 steps."""

    def make():
        return gymnasium.make("HalfCheetah-v5", max_episode_steps=3, forward_reward_weight=0.0)

    draw = np.random.default_rng(2)
    states, actions = draw.normal(size=(41, 17)), draw.uniform(-1, 1, (40, 6))
    data = singleshot.rl.Dataset(states[:-1], actions, np.zeros(40), states[1:], np.zeros(40))
    agent = made("TD3BC", data).fit(1, progress=False)
    named = Environment("HalfCheetah-v5", {"forward_reward_weight": 0.0}, time_limit=3)
    expected = agent.evaluate(named, episodes=2)
    assert ((expected >= -3 * 0.1 * 6) & (expected < 0)).all()
    for own in (make(), make):
        np.testing.assert_allclose(agent.evaluate(own, episodes=2), expected, rtol=1e-4)
    doubled = gymnasium.wrappers.TransformReward(make(), lambda reward: 2 * reward)
    np.testing.assert_allclose(agent.evaluate(doubled, episodes=2), 2 * expected, rtol=1e-4)
    with pytest.raises(UserError, match=r"failed \(TypeError"):
        agent.evaluate(gymnasium.wrappers.TransformReward(make(), lambda _: None))
    with pytest.raises(UserError, match=r"Pendulum.*\(6,\)"):
        agent.evaluate(gymnasium.make("Pendulum-v1"))


def test_packages_that_agents_need_are_named():
    code = "import sys; sys.modules['gymnasium'] = None; from singleshot.rl import BC"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1].startswith(
        "singleshot.errors.UserError: singleshot.rl needs more packages"
    )
    assert ran.stderr.endswith("pip install '.[rl]' in the checkout\n")
