"""A photo's content in a painting's style, by optimising the pixels of one picture (Gatys et al. 2016).

The paper is *Image Style Transfer Using Convolutional Neural Networks*. Section IV.A of the report describes
the method and calls it Version 1.
"""

import math
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Len
from torch import Tensor
from torch.nn.functional import interpolate

from singleshot.errors import UserError
from singleshot.style.backbones import CONTENT_LAYER, STYLE_LAYERS, Backbone, BackboneName
from singleshot.style.losses import (
    Criterion,
    content_loss,
    gram_per_position,
    layer_style_loss,
    total_variation,
)
from singleshot.style.precision import Precision, autocast, resolve

Initialization = Literal["content", "style", "noise"]
OptimizerName = Literal["lbfgs", "adam", "sgd"]

LEARNING_RATES: dict[OptimizerName, float] = {"lbfgs": 1.0, "adam": 0.02, "sgd": 0.01}
"""Default learning rate of each optimiser. For L-BFGS it is the full quasi-Newton step, for Adam 2 % of the
range of a pixel. For SGD it is the textbook's, with which SGD diverges at any style weight that has a visible
effect (section V.D of the report)."""
LAYER_WEIGHTS: dict[BackboneName, tuple[float, ...]] = {
    "vgg16": (0.2, 0.2, 0.2, 0.2, 0.2),
    "vgg19": (0.2, 0.2, 0.2, 0.2, 0.2),
    "alexnet": (0.16, 0.004, 0.002, 0.0005, 0.0003),
}
"""Default weights w_l of eq. 2: Gatys et al.'s for the VGGs and, for AlexNet, weights that make its E_l
comparable to VGG's. AlexNet's activations are sparser and larger, so its E_l are up to 100 times as large at
a mean activation of one. With equal weights, the deeper layers would draw a grid with AlexNet's stride, and
the photo's colours would stay."""
LINE_SEARCH = 25
"""Maximum number of evaluations in one line search; PyTorch's default."""
FIRST_STEP = 1 / 255
"""Mean change of a pixel in the first trial step of L-BFGS. PyTorch's own step changes n values by a mean of
1/n, which is less than bfloat16's rounding errors; the curvature measured over it sent AlexNet's losses
beyond the range of float32."""
LBFGS_HISTORY = 10
"""Number of past steps that L-BFGS keeps, each with its change of the gradient; both are as large as the
picture. Losses with 5 to 100 steps agreed within 2 % (VGG-16 after 120 iterations at 64 px, AlexNet after 200
at 96 px)."""


@dataclass(frozen=True)
class GatysConfig:
    """Settings with which Gatys et al.'s optimisation makes one picture."""

    backbone: BackboneName = "vgg19"
    initialization: Initialization = "content"
    criterion: Criterion = "mse"
    """Measure of the difference between features and between Gram matrices; eq. 1 and 3 use `mse`."""
    optimizer: OptimizerName = "lbfgs"
    learning_rate: Annotated[float, Gt(0)] | None = None
    """Learning rate; by default 1 for L-BFGS, 0.02 for Adam and 0.01 for SGD."""
    iterations: Annotated[int, Ge(1)] = 300
    """Number of evaluations of loss and gradient, with any optimiser."""
    half_size_iterations: Annotated[int, Ge(0)] = 0
    """Number of evaluations at half the size before these, at a fourth of their cost each. They find the
    painting's colours and large strokes (coarse to fine, Gatys et al. 2017, section 6): 80 of them and 20
    look more like the painting than 300 at full size (VGG-19, 256 px)."""
    content_weight: Annotated[float, Ge(0)] = 3e3
    """Weight α of the content loss, times the number of content features: since eq. 1 is a sum over the
    features and eq. 3 a mean, a fixed α would shift the balance with the size of the picture. The weights of
    content, style and total variation were chosen by looking at pictures of 128 to 256 px, made from the
    photo with L-BFGS and `mse`: these pictures have the palette and the strokes of the painting, and still
    show what the photo shows."""
    style_weight: Annotated[float, Ge(0)] = 1e5
    """Weight β of the style loss (eq. 2)."""
    tv_weight: Annotated[float, Ge(0)] = 3e5
    """Weight of the total variation."""
    layer_weights: Annotated[tuple[Annotated[float, Ge(0)], ...], Len(5, 5)] | None = None
    """Weights w_l of eq. 2 for the stages 1 to 5; by default 0.2 each for the
    VGGs, and 0.16, 0.004, 0.002, 0.0005 and 0.0003 for AlexNet."""
    size_px: Annotated[int, Ge(32)] = 512
    """Short side of both photo and painting, in pixels. It is the same for both, so that strokes keep their
    size relative to the picture."""
    precision: Precision = "auto"
    """Arithmetic of the backbone's convolutions. In bfloat16, the losses of a picture are within 0.2 % of
    those in float32, the loss after 60 iterations is within 1.3 % of float32's (VGG-19, L-BFGS, 128 px, two
    paintings; AlexNet's was lower), and the optimisation takes 0.45 of the time on a processor with AMX (256
    px)."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the white noise that the picture starts as if `initialization` is `noise`."""

    def __post_init__(self) -> None:
        if self.half_size_iterations and self.size_px < 64:
            raise UserError(f"half_size_iterations needs a size_px of at least 64, not {self.size_px}")


@dataclass(frozen=True)
class Losses:
    """The losses of one picture."""

    content: float
    """Content loss (eq. 1)."""
    style: float
    """Style loss (eq. 2)."""
    total: float
    """Weighted sum of both losses and the total variation, which is minimised."""


@dataclass(frozen=True)
class Iterate:
    """The picture at one point of the optimisation."""

    iteration: int
    """Number of evaluations of loss and gradient since the initial picture's, which has number 0."""
    losses: Losses
    picture: Tensor
    """The picture (3, H, W). It is not clamped: a pixel may leave [0, 1] and come back."""
    state: dict[str, Any]
    """State with which :func:`optimize` can resume at this iterate; valid until the next iterate is
    requested."""


def optimize(
    content: Tensor,
    style: Tensor,
    backbone: Backbone,
    config: GatysConfig,
    resume: dict[str, Any] | None = None,
) -> Iterator[Iterate]:
    """Yield the initial picture, then the picture after each update.

    `content` (3, H, W) and `style` (3, H', W') are RGB in [0, 1], on the device to compute on. Given
    `resume`, the state of an iterate, the optimisation yields that iterate again and continues as it would
    have without the interruption, bit for bit on the same machine. Iterations at half the size come before
    the first iterate, and aren't counted.

    An iteration is one evaluation of loss and gradient with any optimiser, so that curves can be compared at
    equal cost. Adam and SGD update the picture after each evaluation. L-BFGS takes as many evaluations as its
    line search needs, mostly one, and only pictures that the line search accepts are iterates. (Other
    implementations usually take full steps without a line search, one evaluation each; with AlexNet, these
    made losses 10^3 to 10^18 times as large.)

    The last iterate has number `config.iterations`. The optimisation ends sooner if a loss is no longer
    finite, as may happen with SGD, or if the optimiser finds no lower loss.
    """
    objective = _Objective(content, style, backbone, config)
    first = resume["x"][0] if resume else _first_picture(content, style, backbone, config)
    x = first[None].clone().requires_grad_()
    optimizer = _make_optimizer(x, config)
    if resume:
        optimizer.load_state_dict(resume["optimizer"])
    begun = resume["iteration"] if resume else 0
    for iteration, here in _accepted(objective, optimizer, x, config, begun):
        state = {"iteration": iteration, "x": here.x, "optimizer": optimizer.state_dict()}
        yield Iterate(iteration, here.losses, here.x[0], state)
        if iteration >= config.iterations or not math.isfinite(here.losses.total):
            return


def _first_picture(content: Tensor, style: Tensor, backbone: Backbone, config: GatysConfig) -> Tensor:
    """The initial picture, or what the iterations at half the size make of it."""
    if not config.half_size_iterations:
        return initial_picture(content, style, config)
    half = replace(config, iterations=config.half_size_iterations, half_size_iterations=0)
    photo, painting = (interpolate(each[None], scale_factor=0.5, mode="area")[0] for each in (content, style))
    (last,) = deque(optimize(photo, painting, backbone, half), maxlen=1)
    return interpolate(last.picture[None], content.shape[1:], mode="bilinear")[0]


def initial_picture(content: Tensor, style: Tensor, config: GatysConfig) -> Tensor:
    """The picture that the optimisation starts from (step 2 of section IV.A): (3, H, W), like `content`."""
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
    """L_total = α L_content + β L_style + weighted total variation, of a picture (1, 3, H, W)."""

    def __init__(self, content: Tensor, style: Tensor, backbone: Backbone, config: GatysConfig) -> None:
        self.dtype = resolve(config.precision, str(content.device))
        self.backbone, self.config = backbone.in_precision(self.dtype), config
        self.content_layer = CONTENT_LAYER[config.backbone]
        self.style_layers = STYLE_LAYERS[config.backbone]
        self.w = content.new_tensor(config.layer_weights or LAYER_WEIGHTS[config.backbone])
        with torch.no_grad():
            self.P = self.features(content[None], [self.content_layer])[self.content_layer]
            features = self.features(style[None], self.style_layers)
            self.A = {name: gram_per_position(features[name]) for name in self.style_layers}

    def features(self, pictures: Tensor, layers: Collection[str]) -> dict[str, Tensor]:
        """Activations in float32, as sums over them, also in Gram matrices, lose precision in bfloat16."""
        with autocast(str(pictures.device), self.dtype):
            features = self.backbone(pictures.contiguous(memory_format=torch.channels_last), layers)
        return {layer: activations.float() for layer, activations in features.items()}

    def __call__(self, x: Tensor) -> _Evaluation:
        config = self.config
        F = self.features(x, {self.content_layer, *self.style_layers})
        L_content = content_loss(F[self.content_layer], self.P, config.criterion)  # eq. 1
        # eq. 3
        E = [
            layer_style_loss(gram_per_position(F[name]), self.A[name], config.criterion)
            for name in self.style_layers
        ]
        L_style = self.w @ torch.stack(E)  # eq. 2
        α = config.content_weight / self.P.numel()
        total = α * L_content + config.style_weight * L_style + config.tv_weight * total_variation(x)
        (gradient,) = torch.autograd.grad(total, x)
        losses = Losses(*torch.stack([L_content, L_style, total]).tolist())
        return _Evaluation(x.detach().clone(), gradient, losses)


def _accepted(
    objective: _Objective, optimizer: torch.optim.Optimizer, x: Tensor, config: GatysConfig, iteration: int
) -> Iterator[tuple[int, _Evaluation]]:
    """Yield what is known at x, then at each x that a step of the optimiser accepts.

    Each comes with the number of evaluations so far, from `iteration` on. The end is a step that neither
    moves x nor evaluates anything.
    """
    here, evaluated = objective(x), list[_Evaluation]()

    def evaluate() -> _Evaluation:
        """Evaluate at x; free if x was evaluated since the last accepted x, as where a line search ends."""
        known = next((e for e in (here, *evaluated) if torch.equal(e.x, x)), None)
        if known is None:
            known = objective(x)
            evaluated.append(known)
        x.grad = known.gradient
        return known

    (group,) = optimizer.param_groups
    yield iteration, here
    while True:
        if config.optimizer == "lbfgs":
            group["max_eval"] = min(LINE_SEARCH, config.iterations - iteration)
            group["lr"] = _learning_rate(config) if iteration else FIRST_STEP * x.numel()
        optimizer.step(lambda: evaluate().losses.total)
        if not evaluated and torch.equal(x, here.x):
            return
        here = evaluate()
        iteration += len(evaluated)
        evaluated.clear()
        yield iteration, here


def _learning_rate(config: GatysConfig) -> float:
    return config.learning_rate or LEARNING_RATES[config.optimizer]


def _make_optimizer(x: Tensor, config: GatysConfig) -> torch.optim.Optimizer:
    lr = _learning_rate(config)
    if config.optimizer == "adam":
        return torch.optim.Adam([x], lr)
    if config.optimizer == "sgd":
        return torch.optim.SGD([x], lr)
    # Each call of `step` makes one iteration, and the memory of curvature is kept between calls. The default
    # tolerances are for few parameters: the first step is smaller than they are, and would be the last.
    return torch.optim.LBFGS(
        [x],
        lr,
        max_iter=1,
        history_size=LBFGS_HISTORY,
        tolerance_grad=0,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )
