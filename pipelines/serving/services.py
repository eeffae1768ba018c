"""The three services, whose replicas Ray Serve runs: each opens its graphs once and computes in batches."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray import serve
from torch import Tensor

from pipelines.config.serving import ServiceConfig
from pipelines.serving.answers import Refusal, Served
from pipelines.serving.models import open_models
from pipelines.serving.pictures import Written, decode, encode
from tasks.deployment.classifier import Answer, ClassifierCard, preprocess, top
from tasks.style.transformer_net import MIN_SIDE_PX

Item = TypeVar("Item")
Result = TypeVar("Result")


def threads_of(config: ServiceConfig) -> int:
    """Number of compute threads of a replica."""
    return max(1, int(config.num_cpus))


class Service:
    """The graphs and the queue of a replica. `compute` gets a batch of requests at a time, in a thread."""

    def __init__(self, contents: ray.ObjectRef, config: ServiceConfig) -> None:
        torch.set_num_threads(threads_of(config))
        self.models = open_models(ray.get(contents), threads_of(config))
        # A decorated method could not have its sizes from the configuration.
        self.batched = serve.batch(
            max_batch_size=config.max_batch_size, batch_wait_timeout_s=config.batch_wait_ms / 1000
        )(self._run)

    async def _run(self, requests: list[Any]) -> list[Served]:
        return await asyncio.to_thread(self.compute, requests)

    def compute(self, requests: list[Any]) -> list[Served]:
        """The results, in the order of the requests."""
        raise NotImplementedError


@dataclass(frozen=True)
class Stylization:
    """A request for a picture (3, H, W) in a style."""

    style: str
    picture: Tensor
    strength: float


class Stylizer(Service):
    """Stylises pictures; those of one style and size are computed together."""

    def __init__(self, contents: ray.ObjectRef, config: ServiceConfig, max_pixels: int) -> None:
        super().__init__(contents, config)
        self.max_pixels = max_pixels

    async def __call__(
        self, style: str, body: bytes, strength: float, media_type: Written
    ) -> Served | Refusal:
        """The file of the stylised picture, given that of the original."""
        picture = await asyncio.to_thread(decode, body, self.max_pixels, MIN_SIDE_PX)
        if isinstance(picture, Refusal):
            return picture
        served: Served = await self.batched(Stylization(style, picture, strength))
        return replace(served, value=await asyncio.to_thread(encode, served.value, media_type))

    def compute(self, requests: list[Stylization]) -> list[Served]:
        """The stylised pictures (3, H, W)."""
        return in_groups(requests, lambda each: (each.style, each.picture.shape), self._stylize)

    def _stylize(self, requests: Sequence[Stylization]) -> list[Served]:
        pixels = requests[0].picture[0].numel()
        together = max(1, self.max_pixels // pixels)  # no batch takes more memory than the largest picture
        return [
            served
            for start in range(0, len(requests), together)
            for served in self._stylize_together(requests[start : start + together])
        ]

    def _stylize_together(self, requests: Sequence[Stylization]) -> list[Served]:
        pictures = torch.stack([request.picture for request in requests])
        outputs = self.models[requests[0].style](pictures=pictures.numpy())
        stylised = torch.from_numpy(outputs["stylised"])
        return [
            Served(torch.lerp(request.picture, result, request.strength), len(requests))
            for request, result in zip(requests, stylised, strict=True)
        ]


@dataclass(frozen=True)
class Decision:
    """The inputs of a policy for one state, by name, without the axis of the batch."""

    policy: str
    inputs: Mapping[str, NDArray[np.float32]]


class Actor(Service):
    """Computes actions; the states of one policy are computed together."""

    async def __call__(self, policy: str, inputs: Mapping[str, NDArray[np.float32]]) -> Served:
        """The action (A) for inputs that fit the policy's card."""
        served: Served = await self.batched(Decision(policy, inputs))
        return served

    def compute(self, requests: list[Decision]) -> list[Served]:
        """Actions (A)."""
        return in_groups(requests, lambda each: each.policy, self._act)

    def _act(self, requests: Sequence[Decision]) -> list[Served]:
        inputs = {
            name: np.stack([request.inputs[name] for request in requests]) for name in requests[0].inputs
        }
        actions = self.models[requests[0].policy](**inputs)["action"]
        return [Served(action, len(requests)) for action in actions]


@dataclass(frozen=True)
class Classification:
    """A request for the classes of a normalised picture (3, S, S)."""

    classifier: str
    picture: Tensor


class Classifier(Service):
    """Classifies pictures."""

    def __init__(self, contents: ray.ObjectRef, config: ServiceConfig, max_pixels: int) -> None:
        super().__init__(contents, config)
        self.max_pixels = max_pixels
        self.cards = {name: ClassifierCard.of(model.card.details) for name, model in self.models.items()}

    async def __call__(self, classifier: str, body: bytes) -> Served | Refusal:
        """The most probable five classes (:class:`Answer`) of a picture's file."""
        picture = await asyncio.to_thread(self._prepare, classifier, body)
        if isinstance(picture, Refusal):
            return picture
        served: Served = await self.batched(Classification(classifier, picture))
        return served

    def _prepare(self, classifier: str, body: bytes) -> Tensor | Refusal:
        picture = decode(body, self.max_pixels)
        if isinstance(picture, Refusal):
            return picture
        return preprocess(picture, self.cards[classifier].preprocessing)

    def compute(self, requests: list[Classification]) -> list[Served]:
        """The five most probable classes of each."""
        return in_groups(requests, lambda each: each.classifier, self._classify)

    def _classify(self, requests: Sequence[Classification]) -> list[Served]:
        classifier = requests[0].classifier
        pictures = torch.stack([request.picture for request in requests])
        logits = torch.from_numpy(self.models[classifier](pictures=pictures.numpy())["logits"])
        labels = self.cards[classifier].labels
        return [Served(_five(each, labels), len(requests)) for each in logits]


def _five(logits: Tensor, labels: Sequence[str]) -> list[Answer]:
    return top(logits, labels, k=5)


def in_groups(
    items: Sequence[Item],
    key: Callable[[Item], Hashable],
    compute: Callable[[Sequence[Item]], Sequence[Result]],
) -> list[Result]:
    """Results in the order of `items`; items of equal keys are computed together."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        groups[key(item)].append(index)
    results: dict[int, Result] = {}
    for indices in groups.values():
        results.update(zip(indices, compute([items[index] for index in indices]), strict=True))
    return [results[index] for index in range(len(items))]
