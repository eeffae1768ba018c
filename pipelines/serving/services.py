"""Computes the answers to requests. Each graph is opened once."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipelines.config.serving import ServingConfig
from pipelines.serving.batching import BatchQueue
from pipelines.serving.metrics import BATCHES
from pipelines.serving.models import Model
from pipelines.serving.pictures import Written, decode, encode
from singleshot.export.classifier import PREPARATIONS, Answer, ClassifierCard, Preparation, top
from singleshot.export.onnx_model import OnnxModel, load_onnx
from singleshot.style.apply.regions import placed
from singleshot.style.apply.strokes import with_strokes
from singleshot.style.apply.stylize import StylizeSettings, finished
from singleshot.style.apply.tiling import to_float
from singleshot.style.transformer_net import MIN_SIDE_PX

ANSWERS = 5
"""Number of classes in the answer for a picture."""


@dataclass(frozen=True)
class Decision:
    """The inputs of a policy for one state, by name, without the axis of the batch."""

    policy: str
    inputs: Mapping[str, NDArray[np.float32]]


class Services:
    """Computes answers with the graphs of `models`.

    States for one policy are computed together. Pictures are not, as that takes longer: 114 ms each for four
    pictures of 256 px with a style network of width 16, and 110 ms for a single one (two cores, onnxruntime
    1.31). For each kind of answer, one picture is decoded at a time, so memory is bounded by the largest
    picture, however many requests wait.
    """

    def __init__(self, models: Sequence[Model], config: ServingConfig) -> None:
        threads = max(1, int(config.num_cpus))
        # PyTorch's number of threads is each thread's own. One that has not set it takes all cores, in MKL's
        # functions too: tanh of 64 numbers then takes 24 ms where another process uses a core, not 1 µs.
        torch.set_num_threads(1)
        self._config = config
        self._policies: dict[str, OnnxModel] = {}
        self._networks: dict[str, OnnxModel] = {}
        for model in models:
            if model.card.kind == "policy":
                self._policies[model.name] = load_onnx(model.path, threads=1)
            else:
                self._networks[model.name] = load_onnx(model.path, threads, give_back_memory=True)
        self.act = BatchQueue(self._act, config.act.max_batch_size)
        self._stylizer, self._classifier = (
            ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,)) for _ in range(2)
        )

    def _act(self, decisions: Sequence[Decision]) -> list[NDArray[np.float32]]:
        """Actions (A)."""
        BATCHES.observe(len(decisions))
        together: defaultdict[str, list[int]] = defaultdict(list)
        for i, decision in enumerate(decisions):
            together[decision.policy].append(i)
        actions: dict[int, NDArray[np.float32]] = {}
        for policy, indices in together.items():
            batch = [decisions[i].inputs for i in indices]
            inputs = {name: np.array([each[name] for each in batch]) for name in batch[0]}
            actions.update(zip(indices, self._policies[policy](**inputs)["action"], strict=True))
        return [actions[i] for i in range(len(decisions))]

    async def stylize(self, style: str, body: bytes, settings: StylizeSettings, media_type: Written) -> bytes:
        """Stylise the file of a picture; returns a file."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._stylizer, self._stylize, style, body, settings, media_type)

    def _stylize(self, style: str, body: bytes, settings: StylizeSettings, media_type: Written) -> bytes:
        network = self._networks[style]
        picture = decode(body, self._config.stylize.max_pixels, MIN_SIDE_PX)[None].mul(255).round().byte()

        def draw(small: Tensor) -> Tensor:
            return torch.from_numpy(network(pictures=to_float(small).numpy())["stylised"])

        result = finished(picture, with_strokes(picture, settings.stroke, draw), settings)
        (answer,) = placed(picture, result, settings)
        return encode(answer / 255, media_type)

    async def classify(self, classifier: str, body: bytes, preparation: Preparation) -> list[Answer]:
        """The most probable classes of a picture, given as a file, the most probable first."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._classifier, self._classify, classifier, body, preparation)

    def _classify(self, classifier: str, body: bytes, preparation: Preparation) -> list[Answer]:
        network = self._networks[classifier]
        card = ClassifierCard.of(network.card.details)
        picture = decode(body, self._config.classify.max_pixels)
        prepared = PREPARATIONS[preparation](picture, card.preprocessing)
        (logits,) = network(pictures=prepared[None].numpy())["logits"]
        return top(torch.from_numpy(logits), card.labels, ANSWERS)
