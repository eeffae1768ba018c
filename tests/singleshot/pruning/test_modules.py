"""`prune` and `apply` for any network, against derivatives by hand and PyTorch's own optimisers."""

import copy
import doctest
import gc
import itertools
import math
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.prune import identity

import singleshot
from singleshot.errors import UserError
from singleshot.io.vision import models
from singleshot.pruning import modules
from singleshot.pruning.pruner import grad


@pytest.fixture
def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 2))


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 4, generator=generator), torch.randn(16, 2, generator=generator)


@pytest.fixture
def loss(batch):
    x, y = batch
    return lambda model: mse_loss(model(x), y)


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    return models.resnet18(num_classes=10).train()


def images(model):
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(4, 3, 32, 32, generator=generator), torch.tensor([1, 5, 3, 9])
    return cross_entropy(model(x), y)


def kept(masks):
    return sum(int(mask.sum()) for mask in masks.values())


def test_the_docstring_is_true():
    assert doctest.testmod(modules, optionflags=doctest.ELLIPSIS).failed == 0


def test_snip_is_weight_times_autograds_gradient(mlp, loss):
    loss(mlp).backward()
    scores = {name: (θ * θ.grad).abs() for name, θ in mlp.named_parameters() if "weight" in name}
    masks = singleshot.prune(mlp, loss, sparsity=0.75)
    total = sum(score.numel() for score in scores.values())
    threshold = torch.cat([s.flatten() for s in scores.values()]).sort(descending=True).values[total // 4 - 1]
    assert kept(masks) == total // 4
    for name, score in scores.items():
        assert torch.equal(masks[name], score >= threshold)


@pytest.mark.parametrize(
    "method", ["snip", "grasp", "synflow", "magnitude", "random", "erk", "snip-shuffled"]
)
def test_a_convolutional_network_keeps_exactly_what_was_asked_for(resnet, method):
    masks = singleshot.prune(resnet, images, sparsity=0.9, method=method, iterations=2)
    expected = {
        f"{name}.weight": layer.weight.shape
        for name, layer in resnet.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    }
    assert {name: mask.shape for name, mask in masks.items()} == expected
    total = sum(math.prod(shape) for shape in expected.values())
    assert kept(masks) == total - round(total * 0.9)


@pytest.mark.slow
def test_synflow_collapses_no_layer_in_its_hundred_rounds():
    """Tanaka et al. 2020, figure 1: a single round removes whole layers."""
    torch.manual_seed(0)
    widths = [3, 16, 64, 256, 16]
    convolutions = [nn.Conv2d(*sizes, 3, padding=1) for sizes in itertools.pairwise(widths)]
    model = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))

    def smallest(iterations):
        masks = singleshot.prune(model, images, sparsity=0.998, method="synflow", iterations=iterations)
        return min(int(mask.sum()) for mask in masks.values())

    assert smallest(None) > smallest(1) == 0


def test_scope_layer_gives_each_layer_the_sparsity_and_no_grad_is_lifted(mlp, loss):
    with torch.no_grad():
        masks = singleshot.prune(mlp, loss, sparsity=0.5, scope="layer")
    assert {name: int(mask.sum()) for name, mask in masks.items()} == {"0.weight": 60, "2.weight": 30}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        (torch.optim.AdamW, {}),
        (torch.optim.LBFGS, {}),
    ],
)
def test_pruned_weights_stay_zero_under_any_optimiser_even_one_with_moments(mlp, loss, kind, settings):
    optimizer = kind(mlp.parameters(), lr=0.1, **settings)

    def closure():
        optimizer.zero_grad()
        value = loss(mlp)
        value.backward()
        return value

    optimizer.step(closure)  # moments of all weights
    masks = singleshot.prune(mlp, loss, sparsity=0.8)
    singleshot.apply(mlp, masks)
    before = mlp[0].weight.clone()
    for _ in range(3):
        optimizer.step(closure)
        for key, mask in masks.items():
            assert (mlp.get_parameter(key)[~mask] == 0).all()
            assert (mlp.get_parameter(key).grad[~mask] == 0).all()
    assert not torch.equal(before, mlp[0].weight)


def test_a_copy_keeps_the_masks_and_learns_by_itself(mlp, loss):
    masks = singleshot.prune(mlp, loss, sparsity=0.8)
    singleshot.apply(mlp, masks)
    copied = copy.deepcopy(copy.deepcopy(mlp))
    before = mlp[0].weight.clone()
    loss(copied).backward()
    torch.optim.Adam(copied.parameters(), lr=0.1).step()
    for key, mask in masks.items():
        assert (copied.get_parameter(key)[~mask] == 0).all()
        assert (copied.get_parameter(key).grad[~mask] == 0).all()
    assert not torch.equal(copied[0].weight, before)
    assert torch.equal(mlp[0].weight, before)
    singleshot.apply(copied, {"0.weight": torch.zeros(30, 4, dtype=torch.bool)})
    loss(mlp).backward()
    assert torch.equal(mlp[0].weight.grad != 0, masks["0.weight"] & (mlp[0].weight.grad != 0))
    assert (mlp[0].weight.grad != 0).any()


def test_a_pickled_model_takes_its_masks_again(mlp, loss):
    masks = singleshot.prune(mlp, loss, sparsity=0.8)
    singleshot.apply(mlp, masks)
    read = pickle.loads(pickle.dumps(mlp))
    singleshot.apply(read, masks)
    loss(copy.deepcopy(read)).backward()
    loss(read).backward()
    assert (read[0].weight.grad[~masks["0.weight"]] == 0).all()


def test_a_model_under_masks_ends_with_its_last_name(mlp, loss):
    singleshot.apply(mlp, singleshot.prune(mlp, loss, sparsity=0.5))
    weight = weakref.ref(mlp[0].weight)
    gc.disable()
    try:
        del mlp[0]
        assert weight() is None
    finally:
        gc.enable()


def test_masks_fit_compiled_and_wrapped_models(mlp, loss):
    masks = singleshot.prune(mlp, loss, sparsity=0.5)
    compiled = torch.compile(mlp)
    singleshot.apply(nn.DataParallel(compiled), masks)
    assert all(torch.equal(mlp.get_parameter(name) != 0, mask) for name, mask in masks.items())
    singleshot.apply(mlp, singleshot.prune(compiled, loss, sparsity=0.9))
    assert int(sum((mlp.get_parameter(name) != 0).sum() for name in masks)) == 18


def test_embeddings_also_tied_ones_are_pruned_if_they_are_named_and_their_share_is_told(caplog):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 3), nn.Linear(3, 6, bias=False))
    model[0].weight = model[2].weight

    def loss(m):
        return m(torch.arange(6)).square().sum()

    masks = singleshot.prune(model, loss, sparsity=0.5)
    assert list(masks) == ["1.weight"]
    assert kept(masks) == 5  # 9 - round(9 / 2)
    assert "prune covers 30.0% of the parameters; these stay whole: Embedding 60.0%" in caplog.text
    masks = singleshot.prune(model, loss, sparsity=0.5, layers=[nn.Embedding])
    singleshot.apply(model, masks)
    assert int((model[2].weight != 0).sum()) == 9


def test_layers_are_chosen_by_name_or_type(mlp, loss):
    def chosen(**which):
        return list(singleshot.prune(mlp, loss, 0.5, **which))

    assert chosen(layers=[nn.Linear]) == chosen(layers=["*"]) == ["0.weight", "2.weight"]
    assert chosen(layers=["0"]) == chosen(exclude=["2"]) == ["0.weight"]
    assert chosen(layers=(each for each in [mlp[0]])) == chosen(exclude=iter(["2.*"])) == ["0.weight"]
    assert chosen(layers=[nn.Linear], exclude=["[0-1]"]) == ["2.weight"]
    whole = nn.Sequential(mlp)  # a container stands for all inside
    assert list(singleshot.prune(whole, loss, 0.5, layers=["0"])) == ["0.0.weight", "0.2.weight"]
    # As a pattern, the first layer's name would be the second's.
    named = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("x[0]", "x0")})
    assert list(singleshot.prune(named, None, 0.5, "random", layers=["x[0]"])) == ["x[0].weight"]
    for which, told in (({"exclude": ["head"]}, "no layer 'head'"), ({"layers": [nn.Conv2d]}, "are chosen")):
        with pytest.raises(UserError, match=told):
            chosen(**which)
    with pytest.raises(UserError, match="no weights to prune among"):
        singleshot.prune(whole, loss, 0.5, exclude=[nn.Sequential])


class Nested(nn.Module):
    """A layer with matrices of any names, and an attribute that is called as wrappers are."""

    def __init__(self):
        super().__init__()
        self.weight, self.root = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3, 20))
        self.module = nn.Linear(3, 3)

    def forward(self, x):
        return self.module(x @ self.weight) @ self.root


def test_matrices_of_any_name_can_be_named_and_their_share_is_told(caplog):
    """Of 81 parameters, 60 are `root` and 18 in layers' weights."""
    x = torch.randn(8, 3)
    own = {name: list(singleshot.prune(Nested(), lambda m: m(x).square().sum(), 0.5, layers=given))
           for name, given in {"none": None, "all": ["*"], "one": ["root"]}.items()}  # fmt: skip
    assert own == {
        "none": ["weight", "module.weight"],
        "all": ["weight", "root", "module.weight"],
        "one": ["root"],
    }
    assert "prune covers 22.2% of the parameters; these stay whole: Nested 74.1%" in caplog.text


def test_a_mask_is_for_the_parameter_of_its_exact_name():
    model = Nested()
    singleshot.apply(model, {"weight": torch.eye(3), "module.weight": torch.ones(3, 3)})
    assert int(model.weight.count_nonzero()) == 3
    assert int(model.module.weight.count_nonzero()) == 9


@pytest.mark.parametrize("replace", ["assign", "to_empty", "swap"])
def test_a_parameter_that_takes_anothers_place_obeys_its_mask_and_is_told(mlp, loss, replace, caplog):
    masks = singleshot.prune(mlp, loss, sparsity=0.8)
    singleshot.apply(mlp, masks)
    state = {name: torch.randn_like(θ) for name, θ in mlp.state_dict().items()}
    if replace == "swap":
        for layer in (mlp[0], mlp[2]):
            torch.utils.swap_tensors(layer.weight, nn.Parameter(torch.randn_like(layer.weight)))
    elif replace == "to_empty":
        mlp.to("meta").to_empty(device="cpu").load_state_dict(state)
    else:
        mlp.load_state_dict(state, assign=True)
    loss(mlp).backward()
    torch.optim.Adam(mlp.parameters()).step()
    assert all((mlp.get_parameter(name)[~mask] == 0).all() for name, mask in masks.items())
    assert "2 parameters, such as" in caplog.text


def test_a_mask_goes_with_its_parameter_into_another_layer_and_is_replaced_there(mlp, loss):
    optimizer = torch.optim.SGD(mlp.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        loss(mlp).backward()
        optimizer.step()
        if step == 1:
            masks = singleshot.prune(mlp, loss, sparsity=0.8)
            singleshot.apply(mlp, masks)
            for place in (0, 2):  # as torch.ao.quantization.prepare_qat does
                layer = nn.Linear(1, 1)
                layer.weight, layer.bias = mlp[place].weight, mlp[place].bias
                mlp[place] = layer
            gc.collect()
    assert all((mlp.get_parameter(name)[~mask] == 0).all() for name, mask in masks.items())
    singleshot.apply(mlp, {name: torch.ones_like(mask) for name, mask in masks.items()})
    loss(mlp).backward()
    optimizer.step()
    assert (mlp[0].weight[~masks["0.weight"]] != 0).any()


def test_a_copy_that_loses_its_masks_says_so(caplog):
    class Copied(nn.Linear):
        def __deepcopy__(self, memo):
            made = Copied(3, 3)
            vars(made).update(copy.deepcopy(vars(self), memo))
            return made

    model = Copied(3, 3)
    singleshot.apply(model, {"weight": torch.eye(3)})
    assert torch.equal(copy.deepcopy(model).weight, model.weight)
    assert "a copy of a Copied has no masks" in caplog.text


def test_weights_of_other_numbers_obey_masks(caplog):
    model = nn.Linear(3, 3, dtype=torch.complex64)
    (model.weight.conj() * torch.ones(3, 3)).sum().abs().backward()
    singleshot.apply(model, {"weight": torch.eye(3)})
    (model.weight.conj() * torch.ones(3, 3)).sum().abs().backward()
    model.register_parameter("whole", nn.Parameter(torch.ones(3, 3).to(torch.int8), requires_grad=False))
    singleshot.apply(model, {"whole": torch.eye(3).to_sparse_csr()})
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step()
    assert int(model.weight.count_nonzero()) == int(model.whole.sum()) == 3
    assert not caplog.messages


def test_a_model_that_is_flattened_takes_no_masks_and_one_that_has_some_is_told(mlp, loss, caplog):
    masks = singleshot.prune(mlp, loss, sparsity=0.8)
    later = copy.deepcopy(mlp)
    singleshot.apply(mlp, masks)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        cpu = torch.device("cpu")
        flat, refused = (FullyShardedDataParallel(each, device_id=cpu) for each in (mlp, later))
        optimizer = torch.optim.Adam(flat.parameters())
        flat(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        with pytest.raises(UserError, match=r"^[^\n]*use fully_shard of the same module$"):
            singleshot.apply(refused, masks)
    finally:
        torch.distributed.destroy_process_group()
    (told,) = (line for line in caplog.messages if "masks are gone" in line)
    assert "use torch.distributed.fsdp.fully_shard" in told


def test_what_needs_no_loss_takes_none(mlp, loss):
    masks = (singleshot.prune(mlp, each, 0.9, "magnitude") for each in (None, loss))
    assert all(torch.equal(*each) for each in zip(*(own.values() for own in masks), strict=True))


def test_parameters_under_masks_are_read_by_weights_only(mlp, loss, tmp_path):
    singleshot.apply(mlp, singleshot.prune(mlp, loss, sparsity=0.8))
    torch.save(mlp.state_dict(keep_vars=True), tmp_path / "state.pt")
    assert torch.equal(torch.load(tmp_path / "state.pt")["0.weight"], mlp[0].weight)


def test_a_report_has_kept_and_total_of_each_layer():
    masks = {"a": torch.tensor([[True, False]]), "b.weight": torch.ones(2, 3, dtype=torch.bool)}
    rows = [line.split() for line in singleshot.report(masks).splitlines()]
    assert rows == [
        ["a", "1", "of", "2", "50.00%"],
        ["b.weight", "6", "of", "6", "100.00%"],
        ["all", "7", "of", "8", "87.50%"],
    ]
    large = torch.ones(300, 300, dtype=torch.float16)  # whose sum is infinite
    assert singleshot.report({"a": large}).split()[:4] == ["a", "90,000", "of", "90,000"]


def test_a_report_of_an_mlp_has_the_kept_weights_on_a_path():
    """The second hidden unit is read by nobody, so one of three kept weights computes nothing."""
    masks = {"a": torch.tensor([[True], [True]]), "b": torch.tensor([[True, False]])}
    assert singleshot.report(masks).splitlines()[-1].split() == ["on", "a", "path", "2", "of", "3", "66.67%"]


class Returning(nn.Module):
    """A network that returns its output in some form."""

    def __init__(self, network, form):
        super().__init__()
        self.network, self.form = network, form

    def forward(self, x):
        return self.form(self.network(x))


def test_synflow_sums_whatever_a_model_returns_and_sees_keywords(mlp, loss):
    plain = singleshot.prune(mlp, loss, sparsity=0.5, method="synflow")
    for form, output in (
        (lambda y: (y, None), lambda returned: returned[0]),
        (lambda y: {"logits": y, "more": [y, (y > 0)]}, lambda returned: returned["logits"]),
    ):
        model = Returning(mlp, form)
        own = singleshot.prune(
            model, lambda m, of=output: loss(lambda x: of(m(x=x))), sparsity=0.5, method="synflow"
        )
        assert own.keys() == {f"network.{name}" for name in plain}
        assert all(torch.equal(own[f"network.{name}"], mask) for name, mask in plain.items())


class OfNodes(nn.Module):
    """A graph's layer, whose first axis has no examples, with a float32 tensor of its own."""

    def __init__(self):
        super().__init__()
        self.of_nodes = nn.Linear(4, 6, bias=False)

    def forward(self, x, edges):
        return torch.zeros(len(x), 6).index_add(0, edges[1], self.of_nodes(x)[edges[0]])


def test_synflow_of_a_graph_scores_weights_by_their_magnitude():
    """Each weight meets equal inputs as often as any other."""
    torch.manual_seed(0)
    model, x, edges = OfNodes(), torch.randn(5, 4), torch.tensor([[0, 1, 2, 4], [1, 2, 3, 3]])
    masks = singleshot.prune(model, lambda m: m(x, edges).square().sum(), 0.5, "synflow")
    assert torch.equal(
        masks["of_nodes.weight"], model.of_nodes.weight.abs() > model.of_nodes.weight.abs().median()
    )


def test_synflow_of_a_deep_network_does_not_overflow():
    torch.manual_seed(0)
    layers = [each for _ in range(60) for each in (nn.Linear(64, 64), nn.ReLU())]
    deep, x = nn.Sequential(*layers), torch.randn(2, 64)
    with torch.no_grad():
        for layer in layers[::2]:
            layer.weight.mul_(10)
    masks = singleshot.prune(deep, lambda m: m(x).sum(), sparsity=0.5, method="synflow", iterations=1)
    expected = singleshot.prune(
        deep.double(), lambda m: m(x.double()).sum(), sparsity=0.5, method="synflow", iterations=1
    )
    assert sum(int(mask.sum()) for mask in masks.values()) == 60 * 64 * 64 // 2
    assert all(torch.equal(masks[name], expected[name]) for name in masks)


@pytest.mark.parametrize("method", ["snip", "grasp"])
def test_dropout_is_the_same_in_each_call_and_other_random_numbers_stay(batch, method):
    x, y = batch
    model = nn.Sequential(nn.Linear(4, 30), nn.Dropout(0.5), nn.ReLU(), nn.Linear(30, 2))
    before = torch.get_rng_state()
    first, second = (
        singleshot.prune(model, lambda m: mse_loss(m(x), y), sparsity=0.9, method=method, seed=3)
        for _ in range(2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_gradient_of_a_module_that_is_used_twice_is_the_sum_of_both_uses():
    """f = w (w x) for x = 3: SNIP's score of w is |w · 2 w x|, beside |v x²| of the other weight."""
    twice, other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    model = nn.ModuleDict({"a": twice, "b": twice, "c": other})
    x = torch.full((1, 1), 3.0)

    def loss(m):
        return m["b"](m["a"](x)).sum() + m["c"](x * x / 3).sum()

    for w, v, winner in ((1.0, 1.9, "a.weight"), (1.0, 2.1, "c.weight")):  # 2 w² x = 6 beside v · 3
        twice.weight.data.fill_(w), other.weight.data.fill_(v)
        masks = singleshot.prune(model, loss, 0.5)
        assert [name for name, mask in masks.items() if mask.any()] == [winner]


def test_layers_whose_scores_are_all_0_take_their_part_by_magnitude_and_are_told(caplog):
    """One that takes no part, and a head that begins at 0: SNIP's |θ·∂L/∂θ| is 0 for both."""
    torch.manual_seed(0)
    sizes = {"used": 4, "unused": 2, "head": 2, "other": 2}
    model = nn.ModuleDict({name: nn.Linear(4, size) for name, size in sizes.items()})
    x = torch.randn(8, 4)
    nn.init.zeros_(model["head"].weight)

    def loss(m):
        features = m["used"](x)
        return (m["head"](features) + m["other"](features) - 1).square().sum()

    masks = singleshot.prune(model, loss, 0.75, "snip")
    assert kept({name: masks[name] for name in ("used.weight", "other.weight")}) == 6
    assert kept(masks) == 10
    largest = model["unused"].weight.abs().flatten().topk(2).indices
    assert masks["unused.weight"].flatten().nonzero().flatten().tolist() == sorted(largest.tolist())
    (line,) = [record.getMessage() for record in caplog.records if "snip's scores" in record.getMessage()]
    assert "2 of 4 layers of the model are all 0, such as unused.weight" in line
    assert kept(singleshot.prune(model, loss, 0.97, iterations=20)) == 1  # all others are empty before
    assert "25.00% are kept in all" in line


@pytest.mark.parametrize(
    ("make", "method"),
    [
        (lambda: models.resnet18(num_classes=10, zero_init_residual=True), "snip"),
        (lambda: models.mobilenet_v2(num_classes=10), "synflow"),
    ],
)
def test_networks_with_branches_that_begin_at_0_or_saturate_reach_their_share(make, method):
    """The last BatchNorm of each branch is 0, or ReLU6 has no slope beyond 6: no layer is emptied for it."""
    torch.manual_seed(0)
    masks = singleshot.prune(make().train(), images, 0.95, method, iterations=2)
    total = sum(mask.numel() for mask in masks.values())
    assert kept(masks) == total - round(0.95 * total)
    assert all(mask.any() for mask in masks.values())


@pytest.mark.parametrize("grad", [torch.func.grad, grad])
def test_a_method_of_ones_own_scores_as_a_pruner_does(mlp, loss, grad):
    def taylor(objective, weights):
        g = grad(objective.loss)(weights)
        return {layer: (θ * g[layer]).square() for layer, θ in weights.items()}

    masks = singleshot.prune(mlp, loss, 0.75, taylor)
    snip = singleshot.prune(mlp, loss, 0.75, "snip")  # which ranks by the square root
    assert all(torch.equal(masks[name], mask) for name, mask in snip.items())
    assert masks.keys() == snip.keys()


@pytest.mark.parametrize("method", ["snip", "grasp"])
def test_gradients_of_several_losses_are_added_up(mlp, batch, method):
    """GraSP's Hg is of the whole loss: neither a sum of batches' scores, nor that of their mean's."""
    x, y = (each.double() for each in batch)
    mlp.double()
    whole = singleshot.prune(mlp, lambda m: (m(x) - y).square().sum(), 0.8, method, iterations=2)
    parts = [lambda m, i=i: (m(x[i : i + 5]) - y[i : i + 5]).square().sum() for i in range(0, 16, 5)]
    added = singleshot.prune(mlp, iter(parts), 0.8, method, iterations=2)
    assert all(torch.equal(added[name], mask) for name, mask in whole.items())


def test_frozen_weights_are_pruned_too_and_gradients_are_zero_even_where_they_overflow(mlp, loss):
    mlp[0].weight.requires_grad_(False)
    masks = singleshot.prune(mlp, loss, sparsity=0.5)
    singleshot.apply(mlp, masks)
    assert torch.equal(mlp[0].weight != 0, masks["0.weight"])
    mlp[0].weight.requires_grad_(True)
    (loss(mlp) * torch.inf).backward()
    for name, mask in masks.items():
        assert not mlp.get_parameter(name).grad[~mask].any()


def test_a_frozen_weight_stays_pruned_when_a_file_is_read_into_it(mlp, loss):
    """No optimiser has it, so that of the other weights sees to it."""
    dense = copy.deepcopy(mlp.state_dict())
    masks = singleshot.prune(mlp, loss, sparsity=0.5)
    singleshot.apply(mlp, masks)
    mlp[0].weight.requires_grad_(False)
    mlp.load_state_dict(dense)
    loss(mlp).backward()
    torch.optim.Adam(mlp[2].parameters()).step()
    assert torch.equal(mlp[0].weight, dense["0.weight"] * masks["0.weight"])


class Last(nn.Module):
    """A recurrent network's last output."""

    def __init__(self):
        super().__init__()
        self.network, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.network(x)[0][:, -1])


class GPT2Linear(nn.Module):
    """GPT-2's layer as Hugging Face has it (`Conv1D`)."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return x @ self.weight + self.bias


class Experts(nn.Module):
    """Experts that are multiplied in one batch, as Mixtral's in Hugging Face."""

    def __init__(self):
        super().__init__()
        self.down_proj = nn.Parameter(torch.randn(3, 4, 2))

    def forward(self, x):
        return torch.einsum("bsi,eio->bso", x, self.down_proj)


class Attention(nn.MultiheadAttention):
    """Of the query, with projections of a key and a value of other sizes."""

    def forward(self, x):
        return super().forward(x, x[..., :3], x[..., :5])[0]


@pytest.mark.parametrize("method", ["snip", "grasp", "synflow"])
@pytest.mark.parametrize(
    ("make", "size"), [(Last, 4), (GPT2Linear, 4), (Experts, 4), (lambda: Attention(8, 2, kdim=3, vdim=5), 8)]
)
def test_weights_of_recurrent_attention_and_other_layers_are_pruned(make, size, method):
    torch.manual_seed(0)
    model, x = make(), torch.randn(8, 5, size)
    if method == "synflow" and make not in (GPT2Linear, Experts):
        pytest.skip("gates and attention are not linear")
    masks = singleshot.prune(model, lambda m: m(x).square().mean(), 0.5, method)
    assert masks.keys() == {name for name, θ in model.named_parameters() if "bias" not in name}
    assert kept(masks) == sum(mask.numel() for mask in masks.values()) / 2
    singleshot.apply(model, masks)
    model(x).square().mean().backward()
    torch.optim.Adam(model.parameters()).step()
    for name, mask in masks.items():
        assert torch.equal(model.get_parameter(name) != 0, mask)
        assert (model.get_parameter(name).grad[~mask] == 0).all()


def test_networks_with_hooks_and_losses_with_derivatives_of_inputs_are_pruned(mlp):
    mlp[0].register_full_backward_hook(lambda *_: None)
    x = torch.randn(8, 4)

    def penalised(m):
        inputs = x.clone().requires_grad_()
        value = m(inputs)
        (slope,) = torch.autograd.grad(value.sum(), inputs, create_graph=True)
        return value.square().mean() + (slope.norm() - 1) ** 2

    assert kept(singleshot.prune(mlp, penalised, sparsity=0.5)) == 90


@pytest.mark.parametrize("method", ["snip", "grasp", "synflow", "magnitude"])
def test_a_model_stays_as_it_is_even_if_it_uses_a_module_twice(method):
    """Its parameters and buffers are the same ones under all of their names, and hold the same."""

    def every_tensor():
        return {
            (path, name): (tensor, tensor.clone())
            for path, module in model.named_modules(remove_duplicate=False)
            for name, tensor in (*module._parameters.items(), *module._buffers.items())
        }

    torch.manual_seed(0)
    twice, norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
    model = nn.Sequential(twice, norm, nn.ReLU(), twice, norm, nn.Linear(4, 1)).train()
    before, x = every_tensor(), torch.randn(8, 4)
    masks = singleshot.prune(model, lambda m: m(x).square().sum(), 0.5, method)
    assert masks.keys() == {"0.weight", "5.weight"}
    after = every_tensor()
    assert all(after[key][0] is tensor for key, (tensor, _) in before.items())
    assert all(torch.equal(tensor, values) for tensor, values in before.values())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_new_masks_replace_earlier_ones(mlp, loss):
    for values in (torch.zeros, torch.ones):
        singleshot.apply(mlp, {"0.weight": values(30, 4).bool(), "2.weight": torch.eye(2, 30).numpy()})
    loss(mlp).backward()
    torch.optim.SGD(mlp.parameters(), lr=1.0).step()
    assert (mlp[0].weight != 0).any()
    assert int((mlp[2].weight != 0).sum()) <= 2


def test_mistakes_are_one_line(mlp, loss):
    """What is given instead of `mlp`, `loss` and a sparsity of 0.5; and what the message names."""
    x = torch.ones(2, 4)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    normed = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))

    float8 = nn.Linear(4, 2).to(torch.float8_e5m2)
    with torch.inference_mode():
        inferred = nn.Linear(4, 2)
    sparse, expanded = nn.Linear(4, 2), nn.Linear(4, 2)
    sparse.weight = nn.Parameter(sparse.weight.detach().to_sparse())
    expanded.weight = nn.Parameter(torch.ones(4).expand(2, 4))

    def trains(model):
        value = loss(model)
        value.backward()
        return value

    for named, arguments in (
        ("singleshot.rl", {"method": "rigl"}),
        ("snip-blind", {"method": "snip-blind"}),
        ("method is None", {"method": None}),
        ("sparsity is nan", {"sparsity": math.nan}),
        ("scope is 'global'", {"scope": "global"}),
        ("loss is None; give", {"loss": None}),
        ("'snp' (did you mean snip?); known are", {"method": "snp"}),
        ("loss is tensor(1.)", {"loss": torch.ones(())}),
        ("loss(model) returned (2, 2)", {"loss": lambda model: model(x)}),
        ("loss(model) returned float", {"loss": lambda _: 3.0}),
        ("call model", {"loss": lambda model: next(model.parameters()).sum(), "method": "synflow"}),
        ("layer 0.weight", {"loss": lambda model: model(x).sum() * math.nan}),
        ("on the weights", {"loss": lambda model: model(x).detach().sum()}),
        ("second time", {"loss": trains}),
        ("grasp's scores of the model", {"loss": lambda model: 0 * model(x).sum(), "method": "grasp"}),
        ("use snip or grasp", {"model": normed, "loss": lambda m: m(x).sum(), "method": "synflow"}),
        ("model is", {"model": torch.sum}),
        ("ReLU has no weights", {"model": nn.ReLU()}),
        ("layer 0", {"model": nn.Sequential(nn.LazyLinear(3))}),
        ("layer 0", {"model": nn.Sequential(nn.Linear(4, 1, device="meta"))}),
        ("exclude=['0']", {"model": nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)))}),
        ("sparsity is '0.9'", {"sparsity": "0.9"}),
        ("iterations is 2.5", {"iterations": 2.5}),
        ("layers is '02'", {"layers": "02"}),
        ("exclude is <class", {"exclude": nn.Linear}),
        ("seed is -1", {"seed": -1}),
        ("seed is 118", {"seed": 2**70}),
        ("Linear", {"model": identity(nn.Linear(4, 2), "weight")}),
        ("weights of torch.float8_e5m2", {"model": float8}),
        ("weights of inference mode", {"model": inferred}),
        ("sparse_coo", {"model": sparse}),
        ("a tensor like its weights", {"method": lambda _, w: {name: θ > 0 for name, θ in w.items()}}),
        ("a tensor like its weights", {"method": lambda _, w: {k: θ.to_sparse() for k, θ in w.items()}}),
        ("a tensor like its weights", {"method": lambda _, w: {name: θ.to("meta") for name, θ in w.items()}}),
        (
            "checkpointing",
            {"loss": lambda m: torch.utils.checkpoint.checkpoint(m, x, use_reentrant=False).sum()},
        ),
        ("layer 1 shares its weight with layer 0", {"model": tied}),
    ):
        with pytest.raises(UserError) as caught:
            singleshot.prune(**{"model": mlp, "loss": loss, "sparsity": 0.5} | arguments)
        assert named in str(caught.value)
        assert "\n" not in str(caught.value)
    for named, *arguments in (
        ("'0.weight' has shape (3, 3)", mlp, {"0.weight": torch.ones(3, 3)}),
        ("'9.weight'", mlp, {"9.weight": torch.ones(3, 3)}),
        ("'0.weight'", mlp, {"0.weight": torch.full((30, 4), 0.5)}),
        ("model is", {}, mlp),
        ("masks is 0.9", mlp, 0.9),
        ("masks is {0:", mlp, {0: torch.ones(30, 4)}),
        ("'0.weight' is [[1], [1, 0]]", mlp, {"0.weight": [[1], [1, 0]]}),
        ("'1.weight' differs", tied, {"0.weight": torch.ones(4, 4), "1.weight": torch.eye(4)}),
        ("give a tensor of 0 and 1", mlp, {"0.weight": torch.ones(30, 4, device="meta")}),
        ("sparse or expanded", expanded, {"weight": torch.ones(2, 4)}),
        ("sparse or expanded", sparse, {"weight": torch.ones(2, 4)}),
        ("weight or module.weight", Nested(), {"_orig_mod.weight": torch.ones(3, 3)}),
    ):
        with pytest.raises(UserError) as caught:
            singleshot.apply(*arguments)
        assert named in str(caught.value)
    with pytest.raises(UserError, match="masks is"):
        singleshot.report({"0.weight": [1, 0]})
