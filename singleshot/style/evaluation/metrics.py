"""Similarity of a stylised picture to its photo: SSIM and LPIPS. Pictures are RGB in [0, 1], (3, H, W)."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from singleshot.errors import UserError
from singleshot.io.tensor_file import read_tensor_file
from singleshot.style.backbones import Backbone

LPIPS_EPSILON = 1e-10
"""Added to a norm before something is divided by it, as in `lpips` 0.1."""


def ssim(x: Tensor, y: Tensor) -> float:
    """Structural similarity (Wang et al. 2004, their Gaussian window of 1.5 px), the mean over R, G and B.

    It is 1 for equal pictures. Sides have to be 11 px or more.
    """
    # Imported here because it takes a second, for which users of the tasks' configuration should not wait.
    from skimage.metrics import structural_similarity

    similarity = structural_similarity(  # type: ignore[no-untyped-call]
        x.cpu().numpy(),
        y.cpu().numpy(),
        data_range=1.0,
        channel_axis=0,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    return float(similarity)


class LPIPS:
    """Learned perceptual image patch similarity (Zhang et al. 2018, eq. 1; version 0.1 of its weights).

    `backbone` is VGG16 or AlexNet with torchvision's weights and max pooling. LPIPS scales its input to (2x -
    1 - (-.030, -.088, -.188)) / (.458, .448, .450). That is ImageNet's normalisation, written for pictures in
    [-1, 1], so the backbone's own normalisation does the same.
    """

    def __init__(self, backbone: Backbone, heads: Mapping[str, Tensor]):
        """`heads` are the weights w_l (C) of each layer to compare."""
        self.backbone, self.heads = backbone, heads

    @torch.no_grad()
    def __call__(self, x: Tensor, x_0: Tensor) -> float:
        """Distance between two pictures of one size: Σ_l 1 / (H_l W_l) Σ_hw w_l · (ŷ_hw - ŷ_0,hw)².

        ŷ are a layer's activations, scaled to unit length at each position. Sides have to be 31 px or more
        for AlexNet, 16 px or more for VGG16.
        """
        features = self.backbone(torch.stack([x, x_0]), self.heads)
        distance = 0.0
        for layer, w in self.heads.items():
            y = features[layer]
            ŷ, ŷ_0 = y / (y.norm(dim=1, keepdim=True) + LPIPS_EPSILON)
            distance += float((w.view(-1, 1, 1) * (ŷ - ŷ_0).square()).sum(0).mean())
        return distance


def load_lpips(backbone: Backbone, heads: Path) -> LPIPS:
    """LPIPS on the backbone's device, with the heads in a file that `fetch_weights` wrote.

    Raises:
        UserError: the file is damaged, not such a file, or has no heads for this backbone.
    """
    fix = "fetch the heads of LPIPS again"
    tensors = read_tensor_file(heads, fix).tensors
    prefix, device = f"{backbone.architecture}.", backbone.mean.device
    layers = {key.removeprefix(prefix): w.to(device) for key, w in tensors.items() if key.startswith(prefix)}
    if not layers:
        raise UserError(f"{heads}: no heads for {backbone.architecture}; {fix}")
    return LPIPS(backbone, layers)
