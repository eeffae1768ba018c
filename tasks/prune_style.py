"""Task: single-shot pruning of a style's network, with the loss that it will be trained with."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.func import functional_call

from singleshot.pruning.masks import PruningConfig, prune_networks
from singleshot.pruning.objective import Objective, Weights
from singleshot.pruning.statistics import LayerCount, count_layers
from singleshot.random_streams import stream
from singleshot.style.datasets.photos import PhotoSet
from singleshot.style.johnson import TrainStyleParams, initial_network, open_loss
from singleshot.style.pruning.masks import StyleMask, prunable
from singleshot.style.transformer_net import Residual, TransformerNet
from tasks.job import Event, Job, Metrics, per_job
from tasks.tables import write_csv


@dataclass(frozen=True)
class MaskSettings:
    """Settings with which a mask is made."""

    pruner: str
    sparsity: float
    photos: Annotated[int, Ge(1)]
    """Number of photos in the batch that weights are scored on; each round has another batch."""
    iterations: Annotated[int, Ge(1)] = 1
    """Number of rounds of scoring and pruning (:class:`singleshot.pruning.masks.PruningConfig`)."""


@dataclass(frozen=True)
class PruneStyleParams:
    """Parameters that a mask depends on, besides the painting, the photos and the loss network."""

    training: TrainStyleParams
    """Training of the network with the mask."""
    mask: MaskSettings


@per_job
def prune_style(job: Job) -> Iterator[Event]:
    """Make a job's mask (:class:`PruneStyleParams`), from the initial weights of its training.

    Inputs are those of :func:`tasks.train_style.train_style`. The output gets `mask.safetensors`
    (:class:`StyleMask`) and `layers.csv` (what is left of each layer). Weights of all layers compete with one
    another. Their scores are computed in float32.

    Raises:
        UserError: an input is damaged, there is no such pruner, or scores aren't finite.
    """
    params: PruneStyleParams = job.params
    kept = make_mask(job)
    StyleMask(asdict(params.mask), kept).save(job.output / "mask.safetensors")
    layers = count_layers({params.training.style: kept})
    write_csv(job.output / "layers.csv", LayerCount, layers)
    yield Metrics(0, {"weights_kept": sum(layer.weights_kept for layer in layers)})


def make_mask(job: Job) -> dict[str, Tensor]:
    """The mask: bool, with the names and shapes of :func:`singleshot.style.pruning.masks.prunable`."""
    training, settings = job.params.training, job.params.mask
    config = training.johnson
    start = job.inputs.get("start")
    network = initial_network(config.width, training.seed, start).to(job.device)
    if start is None:
        open_residuals(network)
    loss = open_loss(job.inputs, config, job.device, torch.float32)
    photos = PhotoSet.open(job.inputs["photos"])

    def objectives(iteration: int) -> Mapping[str, Objective]:
        x = photos.batch(training.seed, iteration, settings.photos, config.image_px, config.augment)
        x = x.to(job.device, memory_format=torch.channels_last)
        content = loss.network.content(x)
        generator = stream("pruning", training.seed, 0)  # the same in each round
        return {
            training.style: Objective(
                lambda weights: loss(functional_call(network, weights, (x,)), content).total,
                lambda weights: flow(network, weights),
                generator,
            )
        }

    weights = {training.style: prunable(network)}
    rounds = PruningConfig(iterations=settings.iterations)
    observed = {training.style: {next(iter(weights[training.style])): 3}}  # a picture's colours
    masks = prune_networks(objectives, weights, settings.pruner, settings.sparsity, rounds, observed=observed)
    return {name: kept.cpu() for name, kept in masks[training.style].items()}


def open_residuals(network: TransformerNet) -> None:
    """Set the scales of the norms that end residual blocks to one, like those of all other norms.

    Training starts with these scales at zero. There, nothing depends on a block's weights, so that all of
    these weights, 87 % of the network, would have the score 0.
    """
    for block in network.stages:
        if isinstance(block, Residual):
            norm = block.body[-1]
            assert isinstance(norm, nn.InstanceNorm2d)
            nn.init.ones_(norm.weight)


def flow(network: TransformerNet, weights: Weights) -> Tensor:
    """1ᵀ(∏ θ)1: the sum of the outputs for a picture of ones, without biases, norms or nonlinearities.

    Reflection pads ones with ones, so every map is constant, and a convolution acts as the matrix of its
    kernels' sums.
    """

    def through(modules: nn.Module, prefix: str, v: Tensor) -> Tensor:
        for name, module in modules.named_children():
            if isinstance(module, nn.Conv2d):
                v = weights[f"{prefix}.{name}.weight"].sum((2, 3)) @ v
            elif isinstance(module, Residual):
                v = v + through(module.body, f"{prefix}.{name}.body", v)
        return v

    first = weights["stages.0.weight"]
    return through(network.stages, "stages", first.new_ones(first.shape[1])).sum()
