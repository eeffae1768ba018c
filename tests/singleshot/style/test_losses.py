"""Losses against values computed by hand."""

import pytest
import torch

from singleshot.style.losses import (
    content_loss,
    feature_reconstruction_loss,
    gram_per_position,
    layer_style_loss,
    levels,
    levels_loss,
    normalized_gram,
    style_reconstruction_loss,
    total_variation,
)

# Two filters of 1 x 3 positions: N_l = 2, M_l = 3. Their Gram matrix is [[14, 8], [8, 5]].
F = torch.tensor([[[[1.0, 2.0, 3.0]], [[0.0, 1.0, 2.0]]]])
# One position of it differs by 2, another by 0.5. Its Gram matrix is [[30, 12.5], [12.5, 5.25]]:
# 1 + 4 + 25, 0.5 + 2 + 10, and 0.25 + 1 + 4.
P = torch.tensor([[[[1.0, 2.0, 5.0]], [[0.5, 1.0, 2.0]]]])


def eq_3(features, painting, criterion="mse"):
    return layer_style_loss(gram_per_position(features), gram_per_position(painting), criterion)


@pytest.mark.parametrize(
    ("criterion", "value"),
    [
        ("mse", (2**2 + 0.5**2) / 2),
        ("l1", (2 + 0.5) / 2),
        ("smooth_l1", ((2 - 0.5) + 0.5**2 / 2) / 2),
        ("huber", ((2 - 0.5) + 0.5**2 / 2) / 2),
    ],
)
def test_content_loss_is_half_the_sum(criterion, value):
    assert content_loss(F, P, criterion).item() == pytest.approx(value)


def test_style_loss_of_a_layer_is_equation_3():
    # 1 / (4 · 2² · 3²) · (16² + 2 · 4.5² + 0.25²), or of absolute values per position
    expected = (16**2 + 2 * 4.5**2 + 0.25**2) / (4 * 2**2 * 3**2)
    assert eq_3(F, P).item() == pytest.approx(expected)
    assert eq_3(F, P, "l1").item() == pytest.approx((16 + 2 * 4.5 + 0.25) / (4 * 2**2 * 3))
    # One painting serves a batch.
    assert eq_3(torch.cat([F, P]), P).item() == pytest.approx(expected / 2)
    both, G, A = (normalized_gram(x) for x in (torch.cat([F, P]), F, P))
    alone = style_reconstruction_loss(G, A).item()
    assert style_reconstruction_loss(both, A).item() == pytest.approx(alone / 2)


def test_total_variation():
    picture = torch.tensor([[[[0.0, 1.0, 3.0], [2.0, 2.0, 2.0]]]])
    # Down: 2, 1, -1; across: 1, 2, 0, 0.
    assert total_variation(picture).item() == pytest.approx((4 + 1 + 1) / 3 + (1 + 4) / 4)


def test_johnsons_losses():
    assert feature_reconstruction_loss(F, P).item() == pytest.approx((2**2 + 0.5**2) / 6)  # C H W = 2 · 1 · 3
    assert normalized_gram(F).flatten().tolist() == pytest.approx([14 / 6, 8 / 6, 8 / 6, 5 / 6])
    difference = (16**2 + 2 * 4.5**2 + 0.25**2) / 6**2
    assert style_reconstruction_loss(normalized_gram(F), normalized_gram(P)).item() == pytest.approx(
        difference
    )


@pytest.mark.parametrize("loss", [content_loss, eq_3, feature_reconstruction_loss])
def test_gradient_is_the_finite_difference(loss):
    torch.manual_seed(0)
    target = torch.rand(1, 3, 2, 2, dtype=torch.float64)

    def of(x):
        return loss(x, target)

    x = torch.rand(1, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(of, x)
    assert torch.autograd.gradgradcheck(of, x)
    side_by_side = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    assert torch.autograd.gradcheck(of, side_by_side)


def colours(seed):
    return torch.rand(1, 3, 16, 24, generator=torch.Generator().manual_seed(seed))


def test_levels_of_the_same_colours_elsewhere_are_no_distance():
    x = colours(0)
    moved = x.flatten(2)[..., torch.randperm(16 * 24, generator=torch.Generator().manual_seed(1))]
    assert levels_loss(moved.view_as(x), levels(x)) == pytest.approx(0, abs=1e-12)


def test_levels_brighter_by_a_tenth():
    """u · (0.1, 0.1, 0.1), squared: 0.03 for light, 0 for both saturations, 0.01 for each colour."""
    x = colours(0)
    assert levels_loss(x + 0.1, levels(x)) == pytest.approx((0.03 + 0 + 0 + 3 * 0.01) / 6, rel=1e-4)


def test_the_gradient_of_levels_brings_grey_pictures_to_the_paintings_colours():
    painting = levels(colours(0) * torch.tensor([1.0, 0.6, 0.2]).view(3, 1, 1))
    x = (0.4 + 0.05 * colours(1)).requires_grad_()
    optimizer = torch.optim.Adam([x], 0.02)
    for _ in range(100):
        optimizer.zero_grad()
        levels_loss(x, painting).backward()
        optimizer.step()
    assert levels_loss(x, painting) < 1e-4
