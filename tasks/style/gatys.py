"""A photo's content in a painting's style, by optimising the pixels of one picture (Gatys et al. 2016).

*Image Style Transfer Using Convolutional Neural Networks*; the report's section IV.A, which calls this method
Version 1.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Len
from torch import Tensor
from torch.nn.functional import interpolate

from tasks.style.backbones import CONTENT_LAYER, STYLE_LAYERS, Backbone, BackboneName
from tasks.style.losses import Criterion, content_loss, layer_style_loss, total_variation
from tasks.style.precision import Precision, autocast, resolve

Initialization = Literal["content", "style", "noise"]
OptimizerName = Literal["lbfgs", "adam", "sgd"]

LEARNING_RATES: dict[OptimizerName, float] = {"lbfgs": 1.0, "adam": 0.02, "sgd": 0.01}
"""Learning rates where none is configured. L-BFGS: the full quasi-Newton step. Adam: 2 % of the range of a
pixel. SGD: the textbook's, which makes it diverge at any style weight that shows (the report's section
V.D)."""
LAYER_WEIGHTS: dict[BackboneName, tuple[float, ...]] = {
    "vgg16": (0.2, 0.2, 0.2, 0.2, 0.2),
    "vgg19": (0.2, 0.2, 0.2, 0.2, 0.2),
    "alexnet": (0.16, 0.004, 0.002, 0.0005, 0.0003),
}
"""w_l of eq. 2 where none are configured: Gatys et al.'s, and for AlexNet those that make its E_l comparable
to VGG's. Its activations are rarer and larger, so E_l are up to 100 times as large at a mean of one; with
equal weights the deeper layers draw a grid of AlexNet's stride, and colours stay the photo's."""
LINE_SEARCH = 25
"""Evaluations in one line search at most, as is torch's default."""
FIRST_STEP = 1 / 255
"""Mean change of a pixel in the first trial of L-BFGS. torch's own is 1/n for n values: less than bfloat16
rounds off, and the curvature measured on it sent AlexNet's losses beyond float32."""
LBFGS_HISTORY = 10
"""Pairs of steps and changes of gradient, each as large as the picture. 5 to 100 of them came to the same
loss within 2 % (VGG-16 in 120 iterations at 64 px, AlexNet in 200 at 96 px)."""


@dataclass(frozen=True)
class GatysConfig:
    """How one picture is made."""

    backbone: BackboneName = "vgg19"
    initialization: Initialization = "content"
    criterion: Criterion = "mse"
    """What measures how far features and Gram matrices are apart; eq. 1 and 3 are `mse`."""
    optimizer: OptimizerName = "lbfgs"
    learning_rate: Annotated[float, Gt(0)] | None = None
    """Learning rate; by default the optimiser's own, of `LEARNING_RATES`."""
    iterations: Annotated[int, Ge(1)] = 300
    """Evaluations of loss and gradient, whatever the optimiser."""
    content_weight: Annotated[float, Ge(0)] = 3e3
    """Weight α of the content loss, times the number of content features: eq. 1 is a sum over them and eq. 3
    a mean, and α alone would shift the balance with the size of the picture. These three weights were chosen
    by looking at pictures of 128 to 256 px, made from the photo with L-BFGS and mse: palette and strokes of
    the painting are there, and what the photo shows."""
    style_weight: Annotated[float, Ge(0)] = 1e5
    """Weight β of the style loss (eq. 2)."""
    tv_weight: Annotated[float, Ge(0)] = 3e5
    """Weight of the total variation."""
    layer_weights: Annotated[tuple[Annotated[float, Ge(0)], ...], Len(5, 5)] | None = None
    """Weights w_l of eq. 2, of the stages 1 to 5. By default the backbone's own, of `LAYER_WEIGHTS`."""
    size_px: Annotated[int, Ge(32)] = 512
    """Short sides of photo and painting, so that strokes keep their size relative to the picture."""
    precision: Precision = "auto"
    """Arithmetic of the backbone's convolutions. bfloat16 measures losses within 0.2 % of float32's, comes
    within 1.3 % of its loss in 60 iterations (VGG-19, L-BFGS, 128 px, two paintings; AlexNet came lower), and
    takes 0.45 of the time on a processor with AMX (256 px)."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the white noise that a picture may begin as."""


@dataclass(frozen=True)
class Losses:
    """The losses of one picture."""

    content: float
    """Eq. 1."""
    style: float
    """Eq. 2."""
    total: float
    """What is optimised: both and the total variation, weighted."""


@dataclass(frozen=True)
class Iterate:
    """A picture on the way."""

    iteration: int
    """Evaluations of loss and gradient since the initial picture's, which is number 0."""
    losses: Losses
    picture: Tensor
    """(3, H, W). Not clamped: a pixel may leave [0, 1] and come back."""
    state: dict[str, Any]
    """For `optimize` to begin again with this iterate; valid until the next one is asked for."""


def optimize(
    content: Tensor,
    style: Tensor,
    backbone: Backbone,
    config: GatysConfig,
    resume: dict[str, Any] | None = None,
) -> Iterator[Iterate]:
    """The initial picture, then the picture after each update.

    `content` (3, H, W) and `style` (3, H', W') are RGB in [0, 1], on the device to compute on. Given
    `resume`, the state of an iterate, begins with that one and goes on as before, bit for bit on the same
    machine.

    An iteration is one evaluation of loss and gradient, whatever the optimiser, so that curves compare at
    equal cost. Adam and SGD update after each. L-BFGS takes as many as its line search needs, mostly one, and
    only pictures that it settles on are iterates. (Full steps without a search, one evaluation each,
    are usual elsewhere; with AlexNet they made losses 10^3 to 10^18 times as large.)

    The last iterate is number `config.iterations`. It comes sooner where a loss is no longer finite, as SGD's
    may become, or where the optimiser finds no way down.
    """
    objective = _Objective(content, style, backbone, config)
    x = initial_picture(content, style, config)[None].requires_grad_()
    optimizer = _make_optimizer(x, config)
    iteration = 0
    if resume:
        iteration = resume["iteration"]
        x.data.copy_(resume["x"])
        optimizer.load_state_dict(resume["optimizer"])
    (group,) = optimizer.param_groups
    lr = group["lr"]
    evaluated: list[_Evaluation] = []

    def evaluate() -> _Evaluation:
        """At x; for nothing where x has been since the last iterate: there a line search ends."""
        known = next((e for e in evaluated if torch.equal(e.x, x)), None)
        if known is None:
            known = objective(x)
            evaluated.append(known)
        x.grad = known.gradient
        return known

    while True:
        here = evaluate()
        iteration += len(evaluated) - 1
        evaluated[:] = [here]
        state = {"iteration": iteration, "x": here.x, "optimizer": optimizer.state_dict()}
        yield Iterate(iteration, here.losses, here.x[0], state)
        if iteration >= config.iterations or not math.isfinite(here.losses.total):
            return
        if config.optimizer == "lbfgs":
            group["max_eval"] = min(LINE_SEARCH, config.iterations - iteration)
            group["lr"] = lr if iteration else FIRST_STEP * x.numel()
        optimizer.step(lambda: evaluate().losses.total)
        if len(evaluated) == 1 and torch.equal(x, here.x):
            return


def initial_picture(content: Tensor, style: Tensor, config: GatysConfig) -> Tensor:
    """Where the descent begins (step 2 of section IV.A), shaped like `content`, (3, H, W)."""
    if config.initialization == "content":
        return content.clone()
    if config.initialization == "style":
        size = content.shape[1:]
        return interpolate(style[None], size, mode="bilinear", antialias=True)[0].clamp(0, 1)
    generator = torch.Generator().manual_seed(config.seed)
    return torch.rand(content.shape, generator=generator).to(content)


@dataclass(frozen=True)
class _Evaluation:
    x: Tensor
    gradient: Tensor
    losses: Losses


class _Objective:
    """L_total = α L_content + β L_style + total variation, of a picture (1, 3, H, W)."""

    def __init__(self, content: Tensor, style: Tensor, backbone: Backbone, config: GatysConfig) -> None:
        self.backbone, self.config = backbone, config
        self.dtype = resolve(config.precision, str(content.device))
        self.content_layer = CONTENT_LAYER[config.backbone]
        self.style_layers = STYLE_LAYERS[config.backbone]
        self.w = content.new_tensor(config.layer_weights or LAYER_WEIGHTS[config.backbone])
        with torch.no_grad():
            self.P = self.features(content[None], [self.content_layer])[self.content_layer]
            self.A = self.features(style[None], self.style_layers)

    def features(self, pictures: Tensor, layers: Collection[str]) -> dict[str, Tensor]:
        """In float32: sums over them, of Gram matrices too, would lose digits in bfloat16."""
        with autocast(str(pictures.device), self.dtype):
            features = self.backbone(pictures.contiguous(memory_format=torch.channels_last), layers)
        return {layer: activations.float() for layer, activations in features.items()}

    def __call__(self, x: Tensor) -> _Evaluation:
        config = self.config
        F = self.features(x, {self.content_layer, *self.style_layers})
        L_content = content_loss(F[self.content_layer], self.P, config.criterion)  # eq. 1
        # eq. 3
        E = [layer_style_loss(F[name], self.A[name], config.criterion) for name in self.style_layers]
        L_style = self.w @ torch.stack(E)  # eq. 2
        α = config.content_weight / self.P.numel()
        total = α * L_content + config.style_weight * L_style + config.tv_weight * total_variation(x)
        (gradient,) = torch.autograd.grad(total, x)
        losses = Losses(*torch.stack([L_content, L_style, total]).tolist())
        return _Evaluation(x.detach().clone(), gradient, losses)


def _make_optimizer(x: Tensor, config: GatysConfig) -> torch.optim.Optimizer:
    lr = config.learning_rate or LEARNING_RATES[config.optimizer]
    if config.optimizer == "adam":
        return torch.optim.Adam([x], lr)
    if config.optimizer == "sgd":
        return torch.optim.SGD([x], lr)
    # A step of one iteration at a time; the memory of curvature outlives it. The tolerances are for few
    # parameters: the first step is smaller than theirs, and would be the last.
    return torch.optim.LBFGS(
        [x],
        lr,
        max_iter=1,
        history_size=LBFGS_HISTORY,
        tolerance_grad=0,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )
