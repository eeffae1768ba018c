"""Weights on a path from an input to an output."""

import torch

from singleshot.pruning.effective import on_paths


def test_weights_into_dead_ends_and_out_of_dead_beginnings_do_not_count():
    """Of two hidden units, one is read by nobody; of two in the next layer, one reads nothing."""
    first = torch.tensor([[1, 1, 0], [0, 1, 0]], dtype=torch.bool)
    second = torch.tensor([[1, 0], [0, 0]], dtype=torch.bool)
    last = torch.tensor([[1, 1]], dtype=torch.bool)
    assert [own.long().tolist() for own in on_paths([first, second, last])] == [
        [[1, 1, 0], [0, 0, 0]],
        [[1, 0], [0, 0]],
        [[1, 0]],
    ]


def test_a_weight_is_on_a_path_if_the_flow_of_ones_depends_on_it():
    """SynFlow's 1ᵀ(∏ |θ|)1 has a derivative other than 0 for just these weights."""
    generator = torch.Generator().manual_seed(0)
    masks = [torch.rand(shape, generator=generator) < 0.15 for shape in ((12, 7), (12, 12), (5, 12))]
    weights = [mask.double().requires_grad_() for mask in masks]
    x = torch.ones(7, dtype=torch.double)
    for weight in weights:
        x = weight @ x
    gradients = torch.autograd.grad(x.sum(), weights)
    found = on_paths(masks)
    for own, mask, gradient in zip(found, masks, gradients, strict=True):
        assert torch.equal(own, mask & (gradient != 0))
    assert 0 < sum(int(own.sum()) for own in found) < sum(int(mask.sum()) for mask in masks)
