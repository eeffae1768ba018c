import io
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate
from torch.nn.modules.module import register_module_forward_hook

from singleshot.style.backbones import Backbone
from singleshot.style.datasets.weights import read_backbone
from singleshot.style.gatys import GatysConfig, initial_picture, optimize

SIZE = 48


@pytest.fixture(scope="module")
def alexnet():
    trained, _ = read_backbone("alexnet", "packages")
    convolutions = [(layer.weight, layer.bias) for layer in trained.convolutions]
    return Backbone("alexnet", convolutions, trained.mean, trained.std, "average")


@pytest.fixture(scope="module")
def content():
    y, x = torch.meshgrid(torch.linspace(0, 1, SIZE), torch.linspace(0, 1, SIZE + 8), indexing="ij")
    return torch.stack([x, y, ((x - 0.5) ** 2 + (y - 0.5) ** 2 < 0.1).float()])


@pytest.fixture(scope="module")
def style():
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE + 4), indexing="ij")
    return torch.stack([(x // 4 + y // 4) % 2 * 0.9, torch.sin(x / 3) / 2 + 0.5, (y / SIZE)]).float()


def config(**changes):
    return GatysConfig(**({"backbone": "alexnet", "iterations": 8, "size_px": SIZE} | changes))


@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
@pytest.mark.parametrize("criterion", ["mse", "l1", "smooth_l1", "huber"])
@pytest.mark.parametrize("initialization", ["content", "style", "noise"])
def test_the_loss_falls(alexnet, content, style, initialization, criterion, optimizer):
    settings = config(initialization=initialization, criterion=criterion, optimizer=optimizer)
    first, *_, last = optimize(content, style, alexnet, settings)
    assert (first.iteration, last.iteration) == (0, 8)
    assert last.losses.total < 0.9 * first.losses.total
    assert last.picture.shape == content.shape


def test_sgd_diverges_at_the_textbook_rate_and_ends_in_an_iterate_that_says_so(alexnet, content, style):
    iterates = list(optimize(content, style, alexnet, config(optimizer="sgd", iterations=50)))
    assert iterates[-1].iteration < 50
    assert not math.isfinite(iterates[-1].losses.total)
    assert all(math.isfinite(iterate.losses.total) for iterate in iterates[:-1])
    assert iterates[-2].losses.total > 1e3 * iterates[0].losses.total


def test_lbfgs_never_settles_on_a_worse_picture_and_spends_what_it_was_given(alexnet, content, style):
    evaluations = 0

    def count(module, *_):
        nonlocal evaluations
        evaluations += isinstance(module, Backbone)

    with register_module_forward_hook(count):
        iterates = list(optimize(content, style, alexnet, config(iterations=30)))
    losses = [iterate.losses.total for iterate in iterates]
    assert losses == sorted(losses, reverse=True)
    numbers = [iterate.iteration for iterate in iterates]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 30
    assert evaluations == 2 + 1 + 30  # photo, painting, the initial picture, and the iterations
    # In its own style, a photo has no way down: all losses and gradients are zero.
    (only,) = optimize(content, content, alexnet, config(tv_weight=0.0))
    assert only.losses.total == 0


def test_losses_are_equations_1_to_4_written_out(alexnet, content, style):
    """In numpy, index by index as the report has them, for a painting of the photo's size."""
    style = style[:, :, :SIZE]
    content = content[:, :, :SIZE]
    settings = config(initialization="noise", precision="float32", tv_weight=7.0)
    first, *_, last = optimize(content, style, alexnet, settings)
    assert torch.equal(first.picture, initial_picture(content, style, settings))

    def features(picture, layer):
        return alexnet(picture[None], [layer])[layer][0].flatten(1).double().numpy()

    for x in (first, last):
        F, P = features(x.picture, "relu4"), features(content, "relu4")
        L_content = 0.5 * ((F - P) ** 2).sum()  # eq. 1
        L_style = 0.0
        for w, layer in zip((0.16, 0.004, 0.002, 0.0005, 0.0003), range(1, 6), strict=True):
            F_l, A_l = features(x.picture, f"relu{layer}"), features(style, f"relu{layer}")
            N, M = F_l.shape
            G, A = F_l @ F_l.T, A_l @ A_l.T  # eq. 4
            L_style += w * ((G - A) ** 2).sum() / (4 * N**2 * M**2)  # eq. 2 and 3
        pixels = x.picture.double().numpy()
        variation = (np.diff(pixels, axis=1) ** 2).mean() + (np.diff(pixels, axis=2) ** 2).mean()
        total = (
            settings.content_weight * L_content / P.size + settings.style_weight * L_style + 7.0 * variation
        )
        assert x.losses.content == pytest.approx(L_content, rel=1e-4)
        assert x.losses.style == pytest.approx(L_style, rel=1e-4)
        assert x.losses.total == pytest.approx(total, rel=1e-4)


def test_initial_pictures(content, style):
    assert torch.equal(initial_picture(content, style, config()), content)
    resized = initial_picture(content, style, config(initialization="style"))
    assert resized.shape == content.shape
    assert torch.allclose(resized.mean((1, 2)), style.mean((1, 2)), atol=0.02)
    noise = initial_picture(content, style, config(initialization="noise"))
    assert noise.shape == content.shape
    assert noise.mean().item() == pytest.approx(0.5, abs=0.02)
    assert noise.std().item() == pytest.approx(12**-0.5, abs=0.02)  # uniform on [0, 1]


def test_iterations_at_half_the_size_come_first_and_are_not_counted(alexnet, content, style):
    content, style = (interpolate(each[None], scale_factor=2)[0] for each in (content, style))
    first, *_, last = optimize(content, style, alexnet, config(size_px=96, half_size_iterations=8))
    plain = next(optimize(content, style, alexnet, config(size_px=96)))
    assert (first.iteration, last.iteration) == (0, 8)
    assert last.losses.total < first.losses.total < 0.9 * plain.losses.total


@pytest.mark.parametrize(("optimizer", "saved_at"), [("lbfgs", 1), ("lbfgs", 14), ("adam", 14)])
def test_resumed_from_a_file_it_is_the_same_bit_for_bit(alexnet, content, style, optimizer, saved_at):
    # More iterations than L-BFGS remembers.
    content, style = (interpolate(each[None], scale_factor=2)[0] for each in (content, style))
    settings = config(optimizer=optimizer, iterations=25, size_px=96, half_size_iterations=2)
    whole, saved = [], io.BytesIO()
    for i, iterate in enumerate(optimize(content, style, alexnet, settings)):
        whole.append(iterate)
        if i == saved_at:
            torch.save(iterate.state, saved)
    saved.seek(0)
    rest = list(optimize(content, style, alexnet, settings, torch.load(saved, weights_only=True)))
    assert len(rest) > 5
    for resumed, straight in zip(rest, whole[saved_at:], strict=True):
        assert (resumed.iteration, resumed.losses) == (straight.iteration, straight.losses)
        assert torch.equal(resumed.picture, straight.picture)
