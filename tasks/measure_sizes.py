"""Task: measure the size of a trained model's networks in each storage format."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from torch import Tensor

from singleshot.io.tensor_file import read_tensor_file
from singleshot.sparse.formats import measure
from tasks.job import Job, per_job
from tasks.tables import write_csv


@dataclass(frozen=True)
class SizeParams:
    """Description of the model in the rows of `sizes.csv`."""

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
    """Size in the format `dense` over `bytes`, to four decimals."""
    entropy_bound_bytes: int


@per_job
def measure_sizes(job: Job) -> None:
    """Write `sizes.csv` for a job's model: a row for each network and format.

    The input is `model`, a safetensors file with tensors `network.layer.weight` and `….bias`; its other
    tensors (masks) are not counted.
    """
    write_csv(job.output / "sizes.csv", SizeRow, _rows(job))


def _rows(job: Job) -> Iterator[SizeRow]:
    params: SizeParams = job.params
    for network, tensors in networks_of(read_tensor_file(job.inputs["model"]).tensors).items():
        for size in measure(tensors):
            ratio = {"ratio_to_dense": f"{size.ratio_to_dense:.4f}"}
            yield SizeRow(network=network, **asdict(params), **asdict(size) | ratio)


def networks_of(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The weights and biases among an agent's tensors, by network."""
    networks: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        network, _, parameter = name.partition(".")
        if parameter.endswith((".weight", ".bias")):
            networks.setdefault(network, {})[parameter] = tensor
    return networks
