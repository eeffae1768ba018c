import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.prune import l1_unstructured

import singleshot
from singleshot.errors import UserError
from singleshot.sparse.compaction import Layer, without_dead_units


def run(layers: list[Layer], x: Tensor) -> Tensor:
    *hidden, last = layers
    for layer in hidden:
        x = (x @ layer.weight.T + layer.bias).relu()
    return x @ last.weight.T + last.bias


def sizes(layers: list[Layer]) -> list[tuple[int, ...]]:
    return [tuple(layer.weight.shape) for layer in layers]


def layer(weight: list[list[float]], bias: list[float]) -> Layer:
    return Layer(torch.tensor(weight, dtype=torch.float32), torch.tensor(bias, dtype=torch.float32))


def test_a_unit_without_outgoing_weights_goes():
    compacted = without_dead_units([layer([[1, 2], [3, 4]], [5, 6]), layer([[0, 7]], [8])])

    assert sizes(compacted) == [(1, 2), (1, 1)]
    assert compacted[0].weight.tolist() == [[3, 4]]
    assert compacted[0].bias.tolist() == [6]
    assert (compacted[1].weight.tolist(), compacted[1].bias.tolist()) == ([[7]], [8])


def test_a_unit_without_incoming_weights_becomes_a_bias():
    # Units: x + y, the constant 5, and the constant relu(-3) = 0.
    first = layer([[1, 1], [0, 0], [0, 0]], [0, 5, -3])
    compacted = without_dead_units([first, layer([[2, 10, 100], [3, 20, 200]], [0.5, 0.25])])

    assert sizes(compacted) == [(1, 2), (2, 1)]
    assert compacted[1].weight.tolist() == [[2], [3]]
    assert compacted[1].bias.tolist() == [50.5, 100.25]


def test_a_folded_unit_makes_those_before_and_after_it_go():
    # Layer 2's unit 1 reads nothing but layer 1's unit 1, which is constant, so it is constant too. Layer 1's
    # unit 2 leads nowhere.
    chain = [layer([[1], [0], [2]], [0, 3, 0]), layer([[1, 0, 0], [0, 2, 0]], [0, 0]), layer([[1, 1]], [0])]
    compacted = without_dead_units(chain)

    assert sizes(compacted) == [(1, 1), (1, 1), (1, 1)]
    assert run(compacted, torch.tensor([[4.0], [-1.0]])).tolist() == [[10], [6]]


def test_a_network_without_weights_is_its_constant():
    pruned = [Layer(torch.zeros(5, 3), torch.ones(5)), Layer(torch.zeros(4, 5), torch.ones(4))]
    compacted = without_dead_units([*pruned, Layer(torch.zeros(2, 4), torch.tensor([7.0, -8.0]))])

    assert sizes(compacted) == [(1, 3), (1, 1), (2, 1)]
    assert run(compacted, torch.randn(2, 3)).tolist() == [[7, -8], [7, -8]]


def test_a_network_without_pruned_weights_stays_as_it_is():
    layers = [Layer(torch.randn(5, 3), torch.randn(5)), Layer(torch.randn(2, 5), torch.randn(2))]
    for before, after in zip(layers, without_dead_units(layers), strict=True):
        assert torch.equal(before.weight, after.weight)
        assert torch.equal(before.bias, after.bias)


@st.composite
def pruned_networks(draw: st.DrawFn) -> list[Layer]:
    widths = draw(st.lists(st.integers(1, 8), min_size=2, max_size=5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    layers = []
    for inputs, outputs in pairwise(widths):
        density = draw(st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0]))
        mask = torch.rand(outputs, inputs, generator=generator) < density
        weight = torch.randn(outputs, inputs, generator=generator) * mask
        layers.append(Layer(weight, torch.randn(outputs, generator=generator)))
    return layers


@settings(max_examples=300)
@given(pruned_networks())
def test_any_network_computes_the_same_with_no_unit_too_many(layers):
    originals = [Layer(layer.weight.clone(), layer.bias.clone()) for layer in layers]
    compacted = without_dead_units(layers)

    x = torch.randn(16, layers[0].weight.shape[1], generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(run(compacted, x), run(layers, x), rtol=1e-4, atol=1e-5)
    for small, big in zip(compacted, layers, strict=True):
        assert all(a <= b for a, b in zip(small.weight.shape, big.weight.shape, strict=True))
    for before, after in pairwise(compacted):
        if len(before.bias) > 1:
            assert before.weight.any(dim=1).all(), "a constant unit is left"
            assert after.weight.any(dim=0).all(), "a unit that leads nowhere is left"
    for original, layer in zip(originals, layers, strict=True):
        assert torch.equal(original.weight, layer.weight)
        assert torch.equal(original.bias, layer.bias)


def pruned_mlp() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 2)
    )
    x = torch.randn(32, 8)
    masks = singleshot.prune(model, lambda m: m(x).square().sum(), sparsity=0.97)
    singleshot.apply(model, masks)
    return model


def test_an_mlp_becomes_narrower_and_computes_the_same():
    model, x = pruned_mlp(), torch.randn(100, 8)
    small = singleshot.compact(model)
    assert small[0].out_features < 64
    assert small[2].out_features < 64
    torch.testing.assert_close(small(x), model(x))
    model[1].register_forward_hook(lambda *_: seen.append(1))
    seen = []
    again = singleshot.compact(model.eval())
    again(x)
    assert (seen, again.training) == ([1], False)
    with pytest.raises(UserError, match=r"compact takes .* not Sequential"):
        singleshot.compact(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)))


def test_an_accelerated_mlp_has_the_outputs_and_gradients_of_the_dense_one_and_trains_like_it():
    model, x = pruned_mlp(), torch.randn(7, 5, 8)
    fast, y = singleshot.accelerate(model), torch.randn(7, 5, 2)
    assert fast.values.numel() < 400
    for rows in (x, x[0, 0]):
        torch.testing.assert_close(fast(rows), model(rows))
        with torch.no_grad():
            torch.testing.assert_close(fast(rows), model(rows))
    for each in (model, fast):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9)
        for _ in range(5):
            optimizer.zero_grad()
            (each(x) - y).square().mean().backward()
            optimizer.step()
    whole = fast.whole()
    torch.testing.assert_close(whole(x), model(x))
    torch.testing.assert_close(whole[2].weight, model[2].weight)
    fast.load_state_dict(singleshot.accelerate(whole).state_dict())
    with pytest.raises(UserError, match="keeps the same weights"):
        fast.load_state_dict(singleshot.accelerate(elsewhere(whole)).state_dict())
    for wrong in (x[..., :7], x.double(), x.to_sparse(), x[0, 0, 0], x.tolist()):
        with pytest.raises(UserError, match=r"float32 inputs \(…, 8\)"):
            fast(wrong)


def elsewhere(model):
    """As many kept weights in other places."""
    moved = copy.deepcopy(model)
    moved[0].weight.data = moved[0].weight.data.roll(1, 0)
    return moved


def own_forward(model):
    model[0].forward = lambda x: 2 * nn.functional.linear(x, model[0].weight, model[0].bias)
    return model


def twice(model):
    class Doubled(nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    return Doubled(*model)


def normed(model):
    nn.utils.weight_norm(model[0])
    return model


def pruned_by_torch(model):
    l1_unstructured(model[0], "weight", 0.9)
    return model


def one_layer_twice(_):
    layer = nn.Linear(8, 8)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize("function", [singleshot.compact, singleshot.accelerate])
@pytest.mark.parametrize(
    "make", [twice, own_forward, normed, pruned_by_torch, one_layer_twice, lambda m: m.to("meta")]
)
def test_what_computes_in_another_way_than_its_layers_is_refused(function, make):
    with pytest.raises(UserError, match=r"^[^\n]* takes an nn.Sequential [^\n]*$"):
        function(make(pruned_mlp()))


def test_an_accelerated_mlp_is_frozen_as_a_whole_computes_no_rows_and_stays_in_float32():
    model = pruned_mlp()
    model[0].requires_grad_(False)
    with pytest.raises(UserError, match="all frozen, or none"):
        singleshot.accelerate(model)
    frozen = singleshot.accelerate(model.requires_grad_(False))
    assert not any(θ.requires_grad for θ in (*frozen.parameters(), *frozen.whole().parameters()))
    fast, none = singleshot.accelerate(pruned_mlp()), torch.randn(0, 8, requires_grad=True)
    fast(none).sum().backward()
    assert none.grad.shape == (0, 8)
    assert not fast.values.grad.any()
    with pytest.raises(UserError, match="as the network is"):
        fast.bfloat16()(torch.randn(2, 8))


def test_packing_refuses_what_it_would_lose(tmp_path):
    model = nn.Linear(2, 2, dtype=torch.float64)
    with torch.no_grad():
        model.weight[0, 0] = 1e300
    for values in ("fp16", "int8"):
        with pytest.raises(UserError, match="beyond single precision"):
            singleshot.pack(model, tmp_path / "model.packed", values=values)
    model.register_buffer("turned", torch.randn(2, 2, dtype=torch.complex64).conj())
    singleshot.pack(model, tmp_path / "model.packed")
    assert torch.equal(singleshot.unpack(tmp_path / "model.packed")["turned"], model.turned)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_other_numbers_are_packed_by_their_kept_weights_too(dtype, tmp_path):
    model, path = nn.Linear(200, 100).to(dtype), tmp_path / "model.packed"
    with torch.no_grad():
        model.weight.masked_fill_(torch.rand(100, 200) < 0.9, 0)
    singleshot.pack(model, path)
    found = singleshot.unpack(path)
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())
    kept = int(model.weight.count_nonzero()) + 100
    assert path.stat().st_size < kept * (dtype.itemsize + 1.1) + 600


def test_a_packed_model_has_the_same_bits_in_a_tenth_of_the_bytes(tmp_path):
    model, path = pruned_mlp(), tmp_path / "model.packed"
    singleshot.pack(model, path)
    found = singleshot.unpack(path)
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())
    assert path.stat().st_size < sum(tensor.nbytes for tensor in found.values()) / 10
    with pytest.raises(UserError, match=r"other: .*"):
        singleshot.unpack(tmp_path / "other")
