import os

import pydantic
import pytest
import safetensors.torch
import torch

from singleshot.errors import UserError
from singleshot.rl.agents import (
    Agent,
    AgentSpec,
    dense_masks,
    flatten_masks,
    initial_networks,
    load_agent,
    load_masks,
    make_algorithm,
)
from singleshot.rl.algorithms.bc import BCConfig
from singleshot.rl.algorithms.bcq import BCQConfig
from singleshot.rl.algorithms.td3bc import TD3BCConfig
from tasks.train_agents import TrainParams

SPEC = AgentSpec("Hopper", "bcq", "snip", 0.95, 3)


@pytest.fixture
def agent():
    algorithm = make_algorithm(SPEC, BCQConfig(discount=0.5, evaluation_samples=4), 11, 3)
    masks = {
        name: {layer: torch.rand(mask.shape) < 0.1 for layer, mask in layers.items()}
        for name, layers in dense_masks(algorithm).items()
    }
    networks = {
        name: network.with_weights({layer: θ * masks[name][layer].T for layer, θ in network.weights.items()})
        for name, network in initial_networks(algorithm, [3]).items()
    }
    return Agent(SPEC, algorithm, networks, masks)


def test_a_saved_agent_comes_back_and_acts_the_same(agent, tmp_path):
    agent.save(tmp_path / "agent.safetensors")
    loaded = load_agent(tmp_path / "agent.safetensors")

    assert (loaded.spec, loaded.algorithm.config) == (agent.spec, agent.algorithm.config)
    assert (loaded.algorithm.state_size, loaded.algorithm.action_size) == (11, 3)
    for name, network in agent.networks.items():
        for parameter_name, parameter in network.parameters().items():
            assert torch.equal(loaded.networks[name].parameters()[parameter_name], parameter)
    for key, mask in flatten_masks(agent.masks).items():
        assert torch.equal(flatten_masks(loaded.masks)[key], mask)
    state, noise = torch.randn(1, 5, 11), torch.randn(1, 5, *agent.algorithm.noise_shape)
    assert agent.algorithm.noise_shape == (4, 6)
    assert torch.equal(
        loaded.algorithm.act(loaded.networks, state, noise), agent.algorithm.act(agent.networks, state, noise)
    )


@pytest.mark.parametrize(("name", "config"), [("bcq", BCQConfig()), ("bc", BCConfig())])
@pytest.mark.parametrize("sparsity", [0.5, 0.95])
def test_a_small_agent_has_as_many_weights_as_a_pruned_one(name, config, sparsity):
    full, small = (
        make_algorithm(AgentSpec("HalfCheetah", name, *kind, 0), config, 17, 6).architectures
        for kind in (("dense", 0.0), ("small", sparsity))
    )
    for network, architecture in full.items():
        for part, mlp in architecture.mlps.items():
            own = small[network].mlps[part]
            goal = (1 - sparsity) * sum(i * o for i, o in mlp.layers.values())
            found = sum(i * o for i, o in own.layers.values())
            hidden, heads = mlp.names
            # One unit more or less in each hidden layer would be 1 / width of the weights and more.
            assert abs(found - goal) < 1.1 * goal / max(own.units[layer] for layer in hidden)
            assert [own.units[head] for head in heads] == [mlp.units[head] for head in heads]
            factors = [own.units[layer] / mlp.units[layer] for layer in hidden]
            assert max(factors) - min(factors) < 0.5 / min(mlp.units[layer] for layer in hidden) + 1e-9


def test_a_small_decoder_of_bc_by_hand():
    """29 w + w² + 6 w = 5 % of 588,750 weights: w = 155, which 154 and 156 miss by more."""
    small = make_algorithm(AgentSpec("HalfCheetah", "bc", "small", 0.95, 0), BCConfig(), 17, 6).architectures[
        "vae"
    ]
    assert 0.05 * (29 * 750 + 750 * 750 + 750 * 6) == 29437.5
    assert small.layers["decoder.1"] == (155, 155)
    assert small.layers["decoder.0"] == (29, 155)
    assert small.layers["decoder.2"] == (155, 6)


def test_files_hold_weights_as_nn_linear_does_and_pruned_ones_without_a_sign(agent, tmp_path):
    """In a network that was multiplied by its mask, half of them are -0.0."""
    agent.save(tmp_path / "agent.safetensors")
    tensors = safetensors.torch.load_file(tmp_path / "agent.safetensors")
    for key, tensor in tensors.items():
        if key.endswith("weight"):
            name, layer = key.removesuffix(".weight").split(".", 1)
            assert torch.equal(tensor, agent.networks[name].weights[layer][0].T)
            assert not tensor[tensor == 0].signbit().any()
    module = torch.nn.Linear(14, 400)
    module.load_state_dict({kind: tensors[f"actor.pi.0.{kind}"] for kind in ("weight", "bias")})
    x, actor = torch.randn(9, 14), agent.networks["actor"]
    torch.testing.assert_close(module(x), x @ actor.weights["pi.0"][0] + actor.biases["pi.0"][0, 0])
    assert tensors["actor.pi.0.mask"].shape == (400, 14)


def test_a_damaged_file_is_one_clear_error(agent, tmp_path):
    path = tmp_path / "agent.safetensors"
    agent.save(path)
    for content in (path.read_bytes()[:1000], b"\x02\0\0\0\0\0\0\0{}", None):
        path.write_bytes(content) if content else path.unlink()
        with pytest.raises(UserError, match=str(path)):
            load_agent(path)
    agent.networks["actor"].weights["pi.0"][0, 0, 0] = torch.nan
    agent.save(path)
    with pytest.raises(UserError, match=r"actor\.pi\.0\.weight .* has NaN"):
        load_agent(path)
    agent.networks["actor"].weights["pi.0"][0, 0, 0] = 7
    agent.masks["actor"]["pi.0"][0, 0] = False
    agent.save(path)
    with pytest.raises(UserError, match=r"actor\.pi\.0\.weight has others than 0"):
        load_agent(path)
    os.mkfifo(tmp_path / "fifo")  # who opens it waits for ever
    with pytest.raises(UserError, match="no such file"):
        load_agent(tmp_path / "fifo")


def test_masks_of_other_sizes_are_refused(tmp_path):
    hopper = make_algorithm(SPEC, BCQConfig(), 11, 3)
    cheetah = make_algorithm(SPEC, BCQConfig(), 17, 6)
    path = tmp_path / "masks.safetensors"
    safetensors.torch.save_file(flatten_masks(dense_masks(hopper)), path)
    assert load_masks(path, hopper).keys() == {"actor", "critic", "vae"}
    with pytest.raises(UserError, match=r"masks\.safetensors"):
        load_masks(path, cheetah)


def test_a_wrong_specification_or_hyper_parameter_is_refused_by_name():
    spec = {"environment": "Hopper", "algorithm": "bcq", "pruner": "snip", "sparsity": 0.95, "seed": 0}
    for key, wrong in (
        ("no algorithm 'td3'", {"algorithm": "td3"}),
        ("agent.sparsity", {"sparsity": 1.0}),
        ("agent.seed", {"seed": -1}),
        ("sparsity 0", {"sparsity": 0.0}),
        ("dense", {"pruner": "dense"}),
        ("one line", {"pruner": "snip\nD4RL score 100"}),
    ):
        rest = {"environment": {"id": None}, "algorithm": {}, "training": {}, "evaluation": {}}
        with pytest.raises(pydantic.ValidationError) as caught:
            pydantic.TypeAdapter(TrainParams).validate_python({"agent": spec | wrong} | rest)
        (error,) = caught.value.errors()
        assert key in ".".join(map(str, error["loc"])) + " " + error["msg"]
    for config, key, value in ((BCQConfig, "discount", 1.0), (BCConfig, "learning_rate", -1)):
        with pytest.raises(pydantic.ValidationError, match=key):
            pydantic.TypeAdapter(config).validate_python({key: value})
    with pytest.raises(UserError, match="BCConfig"):
        make_algorithm(SPEC, BCConfig(), 11, 3)
    for wrong in (
        {"batch_size": 4096, "target_samples": 4096},
        {"vae_hidden": (65536, 1), "evaluation_samples": 2048},
    ):
        with pytest.raises(UserError, match="smaller batches or layers"):
            BCQConfig(**wrong)
    with pytest.raises(UserError, match="policy_noise"):
        TD3BCConfig(policy_noise=1e308)
