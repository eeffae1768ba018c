"""Content, style and total-variation losses of Gatys et al. (report, eq. 1-4) and Johnson et al. (eq. 5, 6).

Features are (N, C, H, W). In the report's symbols N_l = C is the number of filters and M_l = H·W their size.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

Criterion = Literal["mse", "l1", "smooth_l1", "huber"]
"""How two representations are compared: by the squared difference, as in the equations, or by one of the
report's three other criteria (section V.C). With PyTorch's β = δ = 1, smooth L1 and Huber are the same
function."""
DIRECTIONS = torch.tensor([(1, 1, 1), (1, 0, -1), (1, -2, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1)]).float()
"""Directions in RGB in which colours are compared: light, two of saturation, and the three colours."""
QUANTILES = 256
"""Number of quantiles at which colours are compared."""

_CRITERIA: dict[Criterion, Callable[..., Tensor]] = {
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "huber": functional.huber_loss,
}


def _scaled_gram(features: Tensor, scale: float) -> Tensor:
    """G_ij = Σ_k F_ik F_jk, inner products of vectorised feature maps (eq. 4), times `scale`."""
    gram: Tensor = _Gram.apply(features.flatten(2), scale)  # type: ignore[no-untyped-call]
    return gram


class _Gram(torch.autograd.Function):
    """α F Fᵀ, and its gradient α (D + Dᵀ) F, in the memory layout of F.

    Autograd computes D F and Dᵀ F apart, and adds them in different layouts, which takes a tenth of the time
    of style training (VGG16, one picture of 128 px, bfloat16 convolutions).
    """

    @staticmethod
    def forward(F: Tensor, α: float) -> Tensor:
        # α is applied to sums in float32, which in float16 would be too large.
        return torch.baddbmm(F.new_empty(()), F, F.mT, beta=0, alpha=α)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:  # noqa: ARG004
        F, ctx.α = inputs
        ctx.save_for_backward(F)

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> tuple[Tensor, None]:
        (F,) = ctx.saved_tensors
        S = ctx.α * (D + D.mT)
        return S @ F if F.is_contiguous() else (F.mT @ S).mT, None


def content_loss(F: Tensor, P: Tensor, criterion: Criterion = "mse") -> Tensor:
    """½ Σ_ij (F_ij - P_ij)² (eq. 1), summed over the pictures of a batch; a scalar."""
    return _CRITERIA[criterion](F, P, reduction="sum") / 2


def gram_per_position(features: Tensor) -> Tensor:
    """The Gram matrix divided by M_l: (N, C, H, W) to (N, C, C)."""
    return _scaled_gram(features, 1 / features.shape[2:].numel())


def layer_style_loss(G: Tensor, A: Tensor, criterion: Criterion = "mse") -> Tensor:
    """E_l = 1 / (4 N_l² M_l²) Σ_ij (G_ij - A_ij)² (eq. 3), averaged over the pictures of a batch; a scalar.

    G and A are from :func:`gram_per_position`: each is divided by its own M_l, so that the painting and the
    picture may differ in size.
    """
    return _CRITERIA[criterion](G, A.expand_as(G)) / 4


def total_variation(pictures: Tensor) -> Tensor:
    """Mean squared difference between vertical neighbours plus that between horizontal ones; a scalar."""
    rows = pictures[..., 1:, :] - pictures[..., :-1, :]
    columns = pictures[..., :, 1:] - pictures[..., :, :-1]
    return rows.square().mean() + columns.square().mean()


def feature_reconstruction_loss(phi_hat: Tensor, phi: Tensor) -> Tensor:
    """1 / (C H W) ‖φ(ŷ) - φ(y)‖² (eq. 5), averaged over the batch; a scalar."""
    # The gradient of `mse_loss` has another memory layout than its argument, which takes 5 of the 120 ms of a
    # batch of style training.
    return (phi_hat - phi).square().mean()


def normalized_gram(features: Tensor) -> Tensor:
    """G^φ, the Gram matrix divided by C·H·W (Johnson et al. 2016): (N, C, H, W) to (N, C, C)."""
    return _scaled_gram(features, 1 / features.shape[1:].numel())


def style_reconstruction_loss(G_hat: Tensor, G: Tensor) -> Tensor:
    """‖G^φ(ŷ) - G^φ(y)‖² (eq. 6), summed over C x C and averaged over the batch; a scalar.

    `G` may have the Gram matrix of a single picture, the painting, for the whole batch of `G_hat`.
    """
    return (G_hat - G).square().sum((1, 2)).mean()


def levels(pictures: Tensor) -> Tensor:
    """Quantiles of colours (N, 3, H, W) in each of the unit `DIRECTIONS`: (N, directions, QUANTILES).

    Together, they say how dark the darks are, how light the lights, and how strong the colours.
    """
    u = DIRECTIONS.to(pictures.device)
    along = (u / u.norm(dim=1, keepdim=True)) @ pictures.float().flatten(2)
    ordered = along.sort(dim=-1).values
    places = torch.linspace(0, ordered.shape[-1] - 1, QUANTILES, device=pictures.device).round().long()
    return ordered[..., places]


def levels_loss(pictures: Tensor, painting: Tensor) -> Tensor:
    """Sliced Wasserstein distance, squared, of colours to a painting's; a scalar (Rabin et al. 2011).

    `painting` are its :func:`levels` (1, directions, QUANTILES). Colours are in [0, 1]. The average is over
    fixed directions, instead of over random ones as in the paper.
    """
    return (levels(pictures) - painting).square().mean()
