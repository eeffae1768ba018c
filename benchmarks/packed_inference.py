"""A pruned actor out of its packed file, beside the dense one: `python -m benchmarks.packed_inference AGENT`.

AGENT is the agent.safetensors of a pruned BCQ agent. Its 400-300 actor, packed and opened again, runs with
zeros for pruned weights in PyTorch as it is (eager) and in onnxruntime; in onnxruntime without the hidden
units that pruning made useless; and with its kept weights alone by the runtime `numba-sparse`. All take NumPy
arrays and give them, as in timings.csv. One thread. Outputs are compared first.
"""

import argparse
import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime
import torch

from benchmarks.command import run_main
from benchmarks.paired import heading, table, take_turns
from pipelines.pack_tool import refuse_packed
from tasks.deployment.actors import open_actor, pack_actor
from tasks.deployment.export import to_onnx
from tasks.deployment.network import Network
from tasks.deployment.onnx_model import GraphCard
from tasks.deployment.parity import random_inputs
from tasks.deployment.runtimes.numba_sparse import with_kept_weights
from tasks.deployment.runtimes.protocol import Arrays
from tasks.deployment.runtimes.torch_eager import runner
from tasks.errors import UserError
from tasks.offline_rl.agents import DENSE as DENSE_AGENT
from tasks.offline_rl.agents import load_agent

CALLS = {1: 10_000, 256: 500}
"""In a turn, by batch: some tenths of a second."""
DENSE, ZEROS = "torch eager, dense", "onnxruntime, zeros"
COMPACTED, SPARSE = "onnxruntime, compacted", "kept weights alone"


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agent", type=Path, metavar="AGENT")
    path: Path = parser.parse_args().agent
    torch.set_num_threads(1)
    zeros, compacted = _actor(path)
    print(heading("torch", "onnxruntime", "numba"))
    print(f"Units {_units(zeros)}; compacted {_units(compacted)}.\n")
    for batch, calls in CALLS.items():
        runs = _variants(zeros, compacted, random_inputs(zeros.inputs, {"batch": batch}, seed=0))
        comparison = take_turns({name: _repeated(run, calls) for name, run in runs.items()})
        rows = []
        for name in runs:
            seconds, speedup = comparison.seconds(name), comparison.speedup(name, DENSE)
            by_cpu = comparison.speedup(name, DENSE, "cpu")
            wall, cpu = (f"{1e6 * each / calls:.1f}" for each in (seconds.wall, seconds.cpu))
            rows.append((name, wall, cpu, speedup, by_cpu))
        print(f"Batch {batch}. {comparison.remark}\n")
        print(table(("way", "µs", "CPU µs", "times as fast", "by CPU time"), rows) + "\n")


def _actor(path: Path) -> tuple[Network, Network]:
    """With zeros, and compacted. UserError if the file is no pruned BCQ agent's."""
    if not path.is_file():
        raise UserError(f"{path}: not a file; name a pruned BCQ agent's agent.safetensors")
    refuse_packed(path)
    if load_agent(path).spec.pruner == DENSE_AGENT:
        raise UserError(f"{path}: was never pruned; name a pruned agent's agent.safetensors")
    with TemporaryDirectory() as directory:
        packed = Path(directory) / "actor.packed"
        packed.write_bytes(pack_actor(path))
        return open_actor(packed, "masked"), open_actor(packed, "compacted")


def _variants(zeros: Network, compacted: Network, inputs: Arrays) -> Mapping[str, Callable[[], Arrays]]:
    """What to time, after a look at whether all compute the same."""
    cpu = torch.device("cpu")
    eager = runner(zeros, zeros.module, cpu)
    sparse = runner(compacted, with_kept_weights(copy.deepcopy(compacted.module)), cpu)
    with_zeros, without = _session(zeros), _session(compacted)
    runs = {
        DENSE: lambda: eager(inputs),
        ZEROS: lambda: with_zeros(inputs),
        COMPACTED: lambda: without(inputs),
        SPARSE: lambda: sparse(inputs),
    }
    (name,) = zeros.outputs
    for run in runs.values():
        np.testing.assert_allclose(run()[name], eager(inputs)[name], rtol=1e-4, atol=1e-5)
    return runs


def _repeated(run: Callable[[], object], calls: int) -> Callable[[], None]:
    def turn() -> None:
        for _ in range(calls):
            run()

    return turn


def _session(network: Network) -> Callable[[Arrays], Arrays]:
    card = GraphCard(
        network.kind,
        "actor",
        network.form,
        network.sparsity,
        "unknown",
        "",
        network.inputs,
        network.outputs,
        {},
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    graph = to_onnx(network, card, opset=20).SerializeToString()
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    names = list(network.outputs)
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def _units(network: Network) -> str:
    weights = [θ for θ in network.module.parameters() if θ.ndim == 2]
    return "-".join(str(size) for size in [weights[0].shape[1], *(len(weight) for weight in weights)])


if __name__ == "__main__":
    run_main(main)
