"""Frozen feature extractors: the convolutions of torchvision's VGG16, VGG19 and AlexNet."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from singleshot.errors import UserError, explained
from singleshot.io.tensor_file import read_tensor_file

BackboneName = Literal["vgg16", "vgg19", "alexnet"]
Pooling = Literal["max", "average"]
Convolutions = Sequence[tuple[Tensor, Tensor]]
"""Weight (O, I, H, W) and bias (O) of each convolution, in order from the picture on."""

_VGG_STYLE_LAYERS = ("relu1_1", "relu2_1", "relu3_1", "relu4_1", "relu5_1")
STYLE_LAYERS: dict[BackboneName, tuple[str, ...]] = {
    "vgg16": _VGG_STYLE_LAYERS,
    "vgg19": _VGG_STYLE_LAYERS,
    "alexnet": ("relu1", "relu2", "relu3", "relu4", "relu5"),
}
"""The first layer of each of the stages 1 to 5 (report, IV.A step 6; Gatys et al. 2015)."""
CONTENT_LAYER: dict[BackboneName, str] = {"vgg16": "relu4_2", "vgg19": "relu4_2", "alexnet": "relu4"}
"""The content layer, which is in stage 4 (report, IV.A step 6; Gatys et al. 2015)."""


class Backbone(nn.Module):
    """Convolutions, ReLUs and poolings of a classifier, with frozen weights.

    `convolutions` are in torchvision's layout. `mean` and `std` are the normalisation of pictures in [0, 1]
    that the weights were trained with, for each of the three channels (RGB).
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        architecture: BackboneName,
        convolutions: Convolutions,
        mean: Tensor,
        std: Tensor,
        pooling: Pooling = "max",
    ):
        # Imported here because it takes 2 s, for which users of this module's names alone should not wait.
        from singleshot.io.vision import models

        super().__init__()
        self.architecture, self.pooling = architecture, pooling
        # `meta` saves the memory of the classifier (0.5 GB in a VGG) and the time for initial values.
        with torch.device("meta"):
            self.features: nn.Sequential = getattr(models, architecture)().features
        self.layers = dict(_relus(architecture, self.features))
        """Position in `features` of each layer that :meth:`forward` knows, in order from the picture on."""
        for convolution, (weight, bias) in zip(self.convolutions, convolutions, strict=True):
            state = {"weight": weight, "bias": bias}
            convolution.load_state_dict(state, assign=True)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        if pooling == "average":
            for i, module in enumerate(self.features):
                if isinstance(module, nn.MaxPool2d):
                    self.features[i] = nn.AvgPool2d(module.kernel_size, module.stride, module.padding)
        self.requires_grad_(False).eval()

    @property
    def convolutions(self) -> list[nn.Conv2d]:
        """The convolutions, in order from the picture on."""
        return [module for module in self.features if isinstance(module, nn.Conv2d)]

    def in_precision(self, dtype: torch.dtype) -> "Backbone":
        """The network with weights in `dtype`, which autocast would otherwise convert to it in each pass."""
        convolutions = [
            (parameters["weight"].to(dtype), parameters["bias"].to(dtype))
            for parameters in (convolution.state_dict() for convolution in self.convolutions)
        ]
        return Backbone(self.architecture, convolutions, self.mean, self.std, self.pooling)

    def forward(self, pictures: Tensor, layers: Collection[str]) -> dict[str, Tensor]:
        """Activations (N, C, H, W) of `layers`, for RGB pictures (N, 3, H, W) in [0, 1].

        The network runs no further than the deepest of `layers`.

        Raises:
            UserError: the network doesn't have one of the layers.
        """
        if unknown := set(layers) - self.layers.keys():
            known = ", ".join(self.layers)
            raise UserError(f"{self.architecture} has no layer {', '.join(sorted(unknown))}; it has {known}")
        wanted = {self.layers[layer]: layer for layer in layers}
        x = (pictures - self.mean.view(3, 1, 1)) / self.std.view(3, 1, 1)
        activations = {}
        # torchvision's ReLUs overwrite the outputs of the convolutions before them, which aren't in `layers`.
        for position in range(max(wanted) + 1):
            x = self.features[position](x)
            if position in wanted:
                activations[wanted[position]] = x
        return activations


def save_backbone(backbone: Backbone, path: Path) -> None:
    """Write the weights by torchvision's names, `mean`, `std` and the architecture's name as safetensors."""
    tensors = {name: tensor.contiguous() for name, tensor in backbone.state_dict().items()}
    save_file(tensors, path, {"architecture": backbone.architecture})


def load_backbone(path: Path, pooling: Pooling = "max") -> Backbone:
    """The network in a file that :func:`save_backbone` wrote, on the CPU.

    Raises:
        UserError: the file is damaged, or not such a file.
    """
    fix = "fetch the weights again"
    file = read_tensor_file(path, fix)
    with explained(f"{path}: not the weights of a backbone", fix):
        tensors = file.tensors
        architecture = {str(name): name for name in STYLE_LAYERS}[file.metadata["architecture"]]
        numbers = sorted(int(key.split(".")[1]) for key in tensors if key.endswith(".weight"))
        layers = [f"features.{number}" for number in numbers]
        convolutions = [(tensors[f"{layer}.weight"], tensors[f"{layer}.bias"]) for layer in layers]
        return Backbone(architecture, convolutions, tensors["mean"], tensors["std"], pooling)


@torch.no_grad()
def normalize_activations(
    backbone: Backbone, pictures: Iterable[Tensor], min_mean: float
) -> tuple[Backbone, dict[str, Tensor]]:
    """Scale weights so that the mean activation of each filter over pictures and positions is one.

    See the report, IV.A step 3, and Gatys et al. 2015. With μ_l,i the mean of channel i after the ReLU of
    layer l in `backbone`, and μ_0 = 1, the new weights and biases are

        W_l[o, i] ← W_l[o, i] · μ_{l-1,i} / μ_l,o        b_l[o] ← b_l[o] / μ_l,o

    A ReLU and both poolings commute with a positive scale of each channel, so a new activation times its μ is
    the old activation. μ_l,i is at least `min_mean` times its layer's mean, so that a filter that hardly ever
    fires isn't amplified without bound; the mean of such a filter stays below one.

    `pictures` are batches (N, 3, H, W) in [0, 1]. The new network has the pooling of `backbone`. The second
    result is μ of each layer, (C), before that bound.
    """
    means = _mean_activations(backbone, pictures)
    convolutions = []
    μ_before = torch.ones_like(backbone.mean)
    for convolution, measured in zip(backbone.convolutions, means.values(), strict=True):
        μ = at_least(min_mean, measured)
        weight = convolution.weight * μ_before.view(1, -1, 1, 1) / μ.view(-1, 1, 1, 1)
        assert convolution.bias is not None
        convolutions.append((weight, convolution.bias / μ))
        μ_before = μ
    normalized = Backbone(backbone.architecture, convolutions, backbone.mean, backbone.std, backbone.pooling)
    return normalized, means


def at_least(min_mean: float, means: Tensor) -> Tensor:
    """A layer's means (C), each raised to at least `min_mean` times the mean of them all."""
    return means.clamp_min(min_mean * float(means.mean()))


def _mean_activations(backbone: Backbone, pictures: Iterable[Tensor]) -> dict[str, Tensor]:
    """Mean activation of each layer's channels over pictures and positions."""
    sums: dict[str, Tensor] = {}
    count = 0
    for batch in pictures:
        for layer, activations in backbone(batch, backbone.layers).items():
            # All pictures have equally many positions, so the mean of their means is the overall mean.
            total = activations.mean((2, 3), dtype=torch.float64).sum(0)
            sums[layer] = sums[layer] + total if layer in sums else total
        count += len(batch)
    return {layer: (total / count).float() for layer, total in sums.items()}


def _relus(architecture: BackboneName, features: nn.Sequential) -> Iterator[tuple[str, int]]:
    """Name and position of each ReLU: `relu4_2` is the second of VGG's stage 4, `relu4` AlexNet's fourth."""
    stage, in_stage, overall = 1, 0, 0
    for position, module in enumerate(features):
        if isinstance(module, nn.MaxPool2d):
            stage, in_stage = stage + 1, 0
        elif isinstance(module, nn.ReLU):
            in_stage, overall = in_stage + 1, overall + 1
            yield (f"relu{overall}" if architecture == "alexnet" else f"relu{stage}_{in_stage}"), position
