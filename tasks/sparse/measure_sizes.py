"""Task: what a trained model's networks take in each storage format."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from tasks.data.tables import write_csv
from tasks.data.tensor_file import read_tensor_file
from tasks.job import Job, per_job
from tasks.sparse.formats import measure


@dataclass(frozen=True)
class SizeParams:
    """How the rows of `sizes.csv` name a model."""

    model: str
    pruner: str
    sparsity: float
    seed: int


@dataclass(frozen=True)
class SizeRow:
    """A row of `sizes.csv`: one network in one storage format."""

    model: str
    network: str
    pruner: str
    sparsity: float
    seed: int
    format: str
    bytes: int
    ratio_to_dense: str
    """Bytes of the dense network over these, to four decimals."""
    entropy_bound_bytes: int


@per_job
def measure_sizes(job: Job) -> None:
    """Write `sizes.csv` of a job's model: a row for each network and format.

    Input is `model`, a safetensors file with tensors `network.layer.weight` and `….bias`; what else it
    holds (masks) is not counted.
    """
    write_csv(job.output / "sizes.csv", SizeRow, _rows(job))


def _rows(job: Job) -> Iterator[SizeRow]:
    params: SizeParams = job.params
    for network, tensors in networks_of(read_tensor_file(job.inputs["model"]).tensors).items():
        for size in measure(tensors):
            yield SizeRow(
                model=params.model,
                network=network,
                pruner=params.pruner,
                sparsity=params.sparsity,
                seed=params.seed,
                format=size.format,
                bytes=size.bytes,
                ratio_to_dense=f"{size.ratio_to_dense:.4f}",
                entropy_bound_bytes=size.entropy_bound_bytes,
            )


def networks_of(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Weights and biases by network, of an agent's tensors."""
    networks: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        network, _, parameter = name.partition(".")
        if parameter.endswith((".weight", ".bias")):
            networks.setdefault(network, {})[parameter] = tensor
    return networks
