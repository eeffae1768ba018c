"""Experts: their files, their actions, and that the shipped ones are worth what their cards say."""

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from singleshot.errors import UserError
from singleshot.rl.environments import LOCOMOTION
from singleshot.rl.experts.collect import returns
from singleshot.rl.experts.policy import Expert, ExpertCard, Returns, load_expert, save_expert

EXPERTS = Path(__file__).parents[4] / "experts"

CARD = ExpertCard(
    environment="Hopper",
    environment_id="Hopper-v5",
    algorithm="TQC",
    steps=1000,
    seed=3,
    hyper_parameters={"batch_size": 128},
    episodes=30,
    deterministic=Returns(1000.5, 10.0, 31.4),
    noisy=Returns(900.0, 20.0, 28.3),
    versions={"sbx-rl": "0.28.0"},
)


@pytest.fixture
def expert() -> Expert:
    """Random layers 11-7-5-3."""
    generator = np.random.default_rng(0)
    sizes = [11, 7, 5, 3]

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    return Expert(
        weights=tuple(normal(n, m) for n, m in itertools.pairwise(sizes)),
        biases=tuple(normal(m) for m in sizes[1:]),
        card=CARD,
    )


def test_acts_as_the_same_network_in_torch(expert):
    layers: list[torch.nn.Module] = []
    for weight, bias in zip(expert.weights, expert.biases, strict=True):
        linear = torch.nn.Linear(*weight.shape)
        linear.weight.data, linear.bias.data = torch.from_numpy(weight.T), torch.from_numpy(bias)
        layers += [linear, torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1], torch.nn.Tanh())
    observations = np.random.default_rng(1).standard_normal((64, 11))
    expected = network(torch.from_numpy(observations.astype(np.float32))).detach().numpy()

    actions = expert.act(observations)

    assert actions.shape == (64, 3)
    np.testing.assert_allclose(actions, expected, atol=1e-4)


@pytest.mark.parametrize("environment", LOCOMOTION)
def test_products_of_the_experts_are_exact(environment: str) -> None:
    """So that no order of sums, and no fused operation, changes an action: compared with integers."""
    expert = load_expert(EXPERTS / f"{environment.lower()}.safetensors")
    states = 10 * np.random.default_rng(0).standard_normal((20, len(expert.weights[0])))
    x = np.rint(states * 2**18).astype(np.int64)
    for weight, bias in zip(expert.weights, expert.biases, strict=True):
        w, b = (np.rint(part.astype(np.float64) * 2**18).astype(np.int64) for part in (weight, bias))
        bound = np.abs(x) @ np.abs(w) + np.abs(b) * 2**18
        assert bound.max() < 2**53
        sums = x @ w + b * 2**18
        x = np.maximum(np.rint(sums / 2**18).astype(np.int64), 0)
    np.testing.assert_array_equal(expert.act(states), np.tanh(sums / 2**36))


def test_comes_back_from_its_file_as_it_went(expert, tmp_path):
    save_expert(expert, tmp_path / "expert.safetensors")
    loaded = load_expert(tmp_path / "expert.safetensors")

    assert loaded.card == CARD
    observations = np.random.default_rng(1).standard_normal((5, 11))
    np.testing.assert_array_equal(loaded.act(observations), expert.act(observations))
    save_expert(loaded, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "expert.safetensors").read_bytes()
    assert json.loads((tmp_path / "expert.json").read_text())["deterministic"]["mean"] == 1000.5


def test_a_damaged_file_and_a_policy_of_another_form_are_one_clear_error(expert, tmp_path):
    path = tmp_path / "expert.safetensors"

    def refused(named):
        with pytest.raises(UserError) as caught:
            load_expert(path)
        assert str(path) in str(caught.value)
        assert named in str(caught.value)

    first, second, third = expert.weights
    for named, changed in (
        ("NaN or infinity", {"weights": (first, second * np.nan, third)}),
        ("layers", {"weights": (first[:, :4], second, third)}),
        ("'Ant'", {"card": dataclasses.replace(CARD, environment="Ant")}),
    ):
        save_expert(dataclasses.replace(expert, **changed), path)
        refused(named)
    save_expert(expert, path)
    path.write_bytes(path.read_bytes()[:-50])
    refused("safetensors file")
    safetensors.numpy.save_file({"x": np.zeros(3)}, path)
    refused("not an expert policy")


@pytest.mark.parametrize("name", LOCOMOTION)
def test_a_shipped_expert_is_worth_what_its_card_says(name):
    expert = load_expert(EXPERTS / f"{name.lower()}.safetensors")
    card, score = expert.card, LOCOMOTION[name].score(expert.card.deterministic.mean)
    assert (card.environment, card.episodes) == (name, 30)
    assert card.deterministic.d4rl_score == pytest.approx(score, abs=0.02)
    assert returns(expert, 1, action_noise=0.0, seed=0).mean > card.deterministic.mean / 2
    for_people = json.loads((EXPERTS / f"{name.lower()}.json").read_text())
    assert dataclasses.asdict(card).items() <= for_people.items()
