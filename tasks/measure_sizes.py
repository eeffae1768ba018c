"""Task: the bytes of a trained agent's networks in each storage format."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from singleshot.io.tables import write_csv
from singleshot.io.tensor_file import read_tensor_file
from singleshot.job import Job, per_job
from singleshot.rl.agents import AgentSpec
from singleshot.sparse.formats import Size, measure


@dataclass(frozen=True)
class SizeRow:
    """A row of `sizes.csv`: one network in one storage format."""

    model: str
    network: str
    pruner: str
    sparsity: float
    seed: int
    size: Size


@per_job
def measure_sizes(job: Job) -> None:
    """Write `sizes.csv` for an agent: a :class:`SizeRow` for each network and format.

    The parameters are its :class:`~singleshot.rl.agents.AgentSpec`. The input is `model`, a safetensors file
    with tensors `network.layer.weight` and `….bias`; its other tensors (masks) are not counted.
    """
    spec: AgentSpec = job.params
    model = f"{spec.environment}/{spec.algorithm}"
    rows = [
        SizeRow(model, network, spec.pruner, spec.sparsity, spec.seed, size)
        for network, tensors in _networks(read_tensor_file(job.inputs["model"]).tensors).items()
        for size in measure(tensors)
    ]
    write_csv(job.output / "sizes.csv", SizeRow, rows)


def _networks(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    networks: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        network, _, parameter = name.partition(".")
        if parameter.endswith((".weight", ".bias")):
            networks.setdefault(network, {})[parameter] = tensor
    return networks
