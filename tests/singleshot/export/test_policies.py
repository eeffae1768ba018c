import pytest
import torch
from small_networks import make_agent, save_agent

from singleshot.errors import UserError
from singleshot.export.policies import make_policy, open_policy


def act(agent, state, latents):
    """What the agents' own code does, given the same noise."""
    return agent.algorithm.act(agent.networks, state[None], latents[None])[0]


@pytest.mark.parametrize("sparsity", [0, 0.5, 0.95, 0.999])
@pytest.mark.parametrize(("batch", "samples"), [(1, 10), (7, 3), (3, 1)])
@pytest.mark.parametrize("compacted", [False, True])
def test_a_bcq_policy_acts_as_its_agent(sparsity, batch, samples, compacted):
    agent = make_agent("bcq", sparsity)
    state, latents = torch.randn(batch, 11), torch.randn(batch, samples, 6)
    policy = make_policy(agent, compacted)

    action, choice = policy(state, latents)

    # Float32 may settle a near tie another way, and at 99.9 % sparsity the critic is often a constant.
    actions, values = policy.candidates(state, latents)
    assert actions.shape == (batch, samples, 3)
    assert values.shape == (batch, samples)
    assert torch.equal(action, actions[torch.arange(batch), choice])
    agents_own = act(agent, state, latents)
    chosen = [(actions[i] - agents_own[i]).abs().amax(dim=1).argmin() for i in range(batch)]
    for i, j in enumerate(chosen):
        torch.testing.assert_close(actions[i, j], agents_own[i], rtol=0, atol=2e-6)
        assert values[i].max() - values[i, j] <= 1e-6


def test_a_compacted_policy_is_smaller():
    agent = make_agent("bcq", 0.99)
    masked, compacted = ([p.numel() for p in make_policy(agent, form).parameters()] for form in (False, True))
    assert all(small <= big for small, big in zip(compacted, masked, strict=True))
    assert sum(compacted) < 0.7 * sum(masked)


def test_masked_weights_have_no_part_whatever_the_file_says(tmp_path):
    agent = make_agent("bc", 0.5)
    state, latents = torch.randn(3, 11), torch.randn(3, 6)
    expected = make_policy(agent)(state, latents)
    for layer, weight in agent.networks["vae"].weights.items():
        weight[0][~agent.masks["vae"][layer].T] = 7.0
    assert torch.equal(make_policy(agent)(state, latents), expected)


def test_an_opened_policy_says_what_goes_in_and_comes_out(tmp_path):
    opened = open_policy(save_agent(tmp_path / "agent.safetensors", "bcq", 0.9), "compacted")

    assert (opened.kind, opened.form, opened.sparsity) == ("policy", "compacted", 0.9)
    assert [(i.name, i.shape) for i in opened.inputs] == [
        ("state", ("batch", 11)),
        ("latents", ("batch", "samples", 6)),
    ]
    assert opened.outputs == ("action", "choice")
    opened = open_policy(save_agent(tmp_path / "agent.safetensors", "bc", 0), "dense")
    assert [(i.name, i.shape) for i in opened.inputs] == [("state", ("batch", 11)), ("latents", ("batch", 6))]
    assert opened.outputs == ("action",)


@pytest.mark.parametrize(("sparsity", "form"), [(0, "compacted"), (0.9, "dense")])
def test_a_form_that_an_agent_has_not(tmp_path, sparsity, form):
    path = save_agent(tmp_path / "agent.safetensors", "bc", sparsity)
    with pytest.raises(UserError, match=str(path)):
        open_policy(path, form)
