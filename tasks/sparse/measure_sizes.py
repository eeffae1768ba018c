"""Task: what a trained model's networks take in each storage format."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import safetensors.torch
from torch import Tensor

from tasks.job import Event, Job, Progress
from tasks.sparse.formats import measure

COLUMNS = (
    "model", "network", "pruner", "sparsity", "seed",
    "format", "bytes", "ratio_to_dense", "entropy_bound_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class SizeParams:
    """How the rows of `sizes.csv` name a model."""

    model: str
    pruner: str
    sparsity: float
    seed: int


def measure_sizes(jobs: Sequence[Job]) -> Iterator[Event]:
    """Write `sizes.csv` of each job's model: a row for each network and format.

    Input is `model`, a safetensors file with tensors `network.layer.weight` and `….bias`; what else it
    holds (masks) is not counted.
    """
    for i, job in enumerate(jobs):
        params: SizeParams = job.params
        with (job.output / "sizes.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for network, tensors in networks_of(safetensors.torch.load_file(job.inputs["model"])).items():
                cause = (params.model, network, params.pruner, params.sparsity, params.seed)
                for size in measure(tensors):
                    ratio = f"{size.ratio_to_dense:.4f}"
                    writer.writerow([*cause, size.format, size.bytes, ratio, size.entropy_bound_bytes])
        yield Progress((i + 1) / len(jobs))


def networks_of(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Weights and biases by network, of an agent's tensors."""
    networks: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        network, _, parameter = name.partition(".")
        if parameter.endswith((".weight", ".bias")):
            networks.setdefault(network, {})[parameter] = tensor
    return networks
