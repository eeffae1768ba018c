import pytest
import torch

from tasks.sparse.layers import Pattern, sparse_linear

SHAPES = [(7, 5, 3), (1, 4, 6), (30, 17, 9)]


def a_mask(inputs, outputs, kind, generator):
    mask = torch.rand(inputs, outputs, generator=generator) < 0.3
    match kind:
        case "empty row":
            mask[0] = False
        case "empty column":
            mask[:, -1] = False
        case "empty":
            mask[:] = False
        case "full":
            mask[:] = True
    return mask


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["some", "empty row", "empty column", "empty", "full"])
@pytest.mark.parametrize("transposed_input", [False, True])
def test_forward_and_gradients_are_autograds_of_the_masked_dense_layer(shape, kind, transposed_input):
    batch, inputs, outputs = shape
    generator = torch.Generator().manual_seed(0)
    mask = a_mask(inputs, outputs, kind, generator)
    dense = torch.randn(inputs, outputs, generator=generator)
    x = torch.randn(batch, inputs, generator=generator)
    target = torch.randn(batch, outputs, generator=generator)
    bias = torch.randn(outputs, generator=generator)

    weight, dense_x = dense.clone().requires_grad_(), x.clone().requires_grad_()
    dense_bias = bias.clone().requires_grad_()
    expected = dense_x @ (weight * mask) + dense_bias
    (expected - target).square().sum().backward()

    pattern = Pattern.of(mask)
    values = pattern.gather(dense).requires_grad_()
    sparse_x = (x.t().contiguous().t() if transposed_input else x.clone()).requires_grad_()
    bias.requires_grad_()
    found = sparse_linear(values, bias, pattern, sparse_x)
    (found - target).square().sum().backward()

    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(pattern.scatter(values.grad), weight.grad)
    torch.testing.assert_close(sparse_x.grad, dense_x.grad)
    torch.testing.assert_close(bias.grad, dense_bias.grad)


@pytest.mark.parametrize("kind", ["some", "empty", "full"])
def test_scatter_is_the_inverse_of_gather(kind):
    generator = torch.Generator().manual_seed(1)
    mask = a_mask(6, 4, kind, generator)
    dense = torch.randn(6, 4, generator=generator) * mask
    pattern = Pattern.of(mask)
    values = pattern.gather(dense)
    assert len(values) == mask.sum()
    assert torch.equal(pattern.scatter(values), dense)


def test_a_kept_weight_that_is_zero_stays_in_the_pattern():
    mask = torch.tensor([[True, False], [True, True]])
    pattern = Pattern.of(mask)
    values = torch.zeros(3).requires_grad_()
    sparse_linear(values, torch.zeros(2), pattern, torch.ones(2, 2)).sum().backward()
    assert torch.equal(pattern.scatter(values.grad), torch.tensor([[2.0, 0.0], [2.0, 2.0]]))
