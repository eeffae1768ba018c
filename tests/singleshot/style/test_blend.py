import pytest
import torch

from singleshot.errors import UserError
from singleshot.style.blend import blend
from singleshot.style.transformer_net import TransformerNet


def network(width, seed):
    torch.manual_seed(seed)
    made = TransformerNet(width).eval()
    for weight in made.parameters():  # residual blocks too, which begin as nothing
        weight.data += 0.05 * torch.randn_like(weight)
    return made


@pytest.fixture(scope="module")
def photos():
    return torch.rand(2, 3, 32, 41, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shares", [(0.7, 0.3), (7, 3)])
def test_logits_are_mixed_by_their_shares(photos, shares):
    a, b = network(4, 1), network(6, 2)
    with torch.inference_mode():
        expected = (0.7 * a(photos).logit() + 0.3 * b(photos).logit()).sigmoid()
        torch.testing.assert_close(blend([a, b], shares)(photos), expected, rtol=0, atol=1e-4)


def test_one_style_is_itself(photos):
    a = network(4, 1)
    with torch.inference_mode():
        torch.testing.assert_close(blend([a], [0.2])(photos), a(photos))


@pytest.mark.parametrize("shares", [(1, 0), (1, -1), (1, float("nan")), (1,), (1, float("inf"))])
def test_shares_are_above_zero(shares):
    with pytest.raises(UserError, match="give each style one above 0"):
        blend([network(4, 1), network(4, 2)], shares)
