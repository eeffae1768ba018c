import pytest
import safetensors.torch
import torch
from small_networks import make_agent, save_agent, save_style

from singleshot.errors import UserError
from singleshot.export.classifier import fetch_classifier, save_classifier
from singleshot.export.model_files import open_network
from singleshot.rl.policies import make_policy


def test_each_kind_of_file_is_recognised(tmp_path):
    agent = open_network(save_agent(tmp_path / "a.safetensors", "bc", 0.9), "masked")
    style = open_network(save_style(tmp_path / "b.safetensors"))
    save_classifier(*fetch_classifier("efficientnet_lite0", "random"), tmp_path / "c.safetensors")
    classifier = open_network(tmp_path / "c.safetensors")

    assert [network.card.kind for network in (agent, style, classifier)] == ["policy", "style", "classifier"]
    assert [each.shape for each in agent.card.inputs] == [("batch", 11), ("batch", 6)]
    assert style.card.details == {"style": "dots"}
    pictures = torch.rand(2, 3, 17, 22)
    assert style.module(pictures).shape == pictures.shape
    assert classifier.card.inputs[0].shape == ("batch", 3, 224, 224)
    assert len(classifier.card.details["labels"]) == 1000
    assert not any(network.module.training for network in (agent, style, classifier))


@pytest.mark.parametrize(
    ("write", "form", "word"),
    [
        (lambda path: None, "dense", "no such file"),
        (lambda path: path.write_bytes(b"12345"), "dense", "safetensors"),
        (lambda path: safetensors.torch.save_file({"a": torch.ones(1)}, path), "dense", "neither"),
        (save_style, "compacted", "compacted"),
        (lambda path: save_agent(path, "bc", 0), "compacted", "compacted"),
        (lambda path: save_agent(path, "bc", 0.9), "dense", "masked or compacted"),
    ],
)
def test_other_files_and_forms_are_refused(tmp_path, write, form, word):
    write(tmp_path / "it.safetensors")
    with pytest.raises(UserError, match=rf"it\.safetensors: .*{word}"):
        open_network(tmp_path / "it.safetensors", form)


@pytest.mark.parametrize("sparsity", [0, 0.5, 0.95, 0.999])
@pytest.mark.parametrize("compacted", [False, True])
def test_a_bcq_policy_acts_as_its_agent(sparsity, compacted):
    agent = make_agent("bcq", sparsity)
    state, latents = torch.randn(7, 11), torch.randn(7, 3, 6)
    policy = make_policy(agent, compacted)
    action, choice = policy(state, latents)

    # Float32 may settle a near tie another way, and at 99.9 % sparsity the critic is often a constant.
    actions, values = policy.candidates(state, latents)
    assert (actions.shape, values.shape) == ((7, 3, 3), (7, 3))
    assert torch.equal(action, actions[torch.arange(7), choice])
    own = agent.algorithm.act(agent.networks, state[None], latents[None])[0]
    for i, j in enumerate((actions - own[:, None]).abs().amax(dim=2).argmin(dim=1)):
        torch.testing.assert_close(actions[i, j], own[i], rtol=0, atol=2e-6)
        assert values[i].max() - values[i, j] <= 1e-6


def test_masked_weights_have_no_part_whatever_the_file_says():
    agent = make_agent("bc", 0.5)
    state, latents = torch.randn(3, 11), torch.randn(3, 6)
    expected = make_policy(agent)(state, latents)
    for layer, weight in agent.networks["vae"].weights.items():
        weight[0][~agent.masks["vae"][layer].T] = 7.0
    assert torch.equal(make_policy(agent)(state, latents), expected)
