"""A pruned actor from its packed file, beside the dense one: `python -m benchmarks.packed_inference AGENT`.

AGENT is the agent.safetensors of a pruned BCQ agent. Its 400-300 actor, packed and opened again, runs with
zeros for pruned weights in eager PyTorch and in onnxruntime; in onnxruntime without the hidden units that
pruning made useless; and with its kept weights alone in the runtime `numba-sparse`. All take and return NumPy
arrays, as in timings.csv, and run on one thread. Their outputs are compared first.
"""

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.command import run_main
from benchmarks.paired import heading, table, take_turns
from pipelines.cli.pack import refuse_packed
from singleshot.errors import UserError
from singleshot.export.actors import open_actor
from singleshot.export.network import Network
from singleshot.export.onnx_model import Form
from singleshot.export.parity import random_inputs
from singleshot.export.runtimes import open_runtime
from singleshot.export.runtimes.protocol import Arrays, ModelFiles, Runtime
from singleshot.pruning.variant import DENSE as DENSE_AGENT
from singleshot.rl.agents import load_agent
from tasks.benchmark_actor import actor_files

FORMS: tuple[Form, Form] = ("masked", "compacted")
CALLS = {1: 10_000, 256: 500}
"""Number of calls in a turn, by batch size: some tenths of a second."""
DENSE, ZEROS = "torch eager, dense", "onnxruntime, zeros"
COMPACTED, SPARSE = "onnxruntime, compacted", "kept weights alone"


def main() -> None:
    """Print a Markdown table, with what it was measured on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agent", type=Path, metavar="AGENT")
    path: Path = parser.parse_args().agent
    torch.set_num_threads(1)
    with TemporaryDirectory() as directory:
        _measure(_checked(path), Path(directory))


def _measure(agent: Path, directory: Path) -> None:
    files = {}
    for form in FORMS:
        (directory / form).mkdir()
        files[form] = actor_files(directory / form, agent, form, "actor", "unknown", opset=20)
    zeros, compacted = (open_actor(files[form].source, form) for form in FORMS)
    print(heading("torch", "onnxruntime", "numba"))
    print(f"Units {_units(zeros)}; compacted {_units(compacted)}.\n")
    for batch, calls in CALLS.items():
        inputs = random_inputs(zeros.inputs, {"batch": batch}, seed=0)
        runs = _variants(files["masked"], files["compacted"], inputs)
        comparison = take_turns({name: _repeated(run, calls) for name, run in runs.items()})
        rows = []
        for name in runs:
            seconds, speedup = comparison.seconds(name), comparison.speedup(name, DENSE)
            by_cpu = comparison.speedup(name, DENSE, "cpu")
            wall, cpu = (f"{1e6 * each / calls:.1f}" for each in (seconds.wall, seconds.cpu))
            rows.append((name, wall, cpu, speedup, by_cpu))
        print(f"Batch {batch}. {comparison.remark}\n")
        print(table(("way", "µs", "CPU µs", "times as fast", "by CPU time"), rows) + "\n")


def _checked(path: Path) -> Path:
    """Return the path; raise a UserError if it is not the file of a pruned agent."""
    if not path.is_file():
        raise UserError(f"{path}: not a file; name a pruned BCQ agent's agent.safetensors")
    refuse_packed(path)
    if load_agent(path).spec.pruner == DENSE_AGENT:
        raise UserError(f"{path}: was never pruned; name a pruned agent's agent.safetensors")
    return path


def _variants(zeros: ModelFiles, compacted: ModelFiles, inputs: Arrays) -> Mapping[str, Callable[[], Arrays]]:
    """The variants to time, after a check that all compute the same."""
    by_onnxruntime = open_runtime("onnxruntime")
    runtimes: dict[str, tuple[Runtime, ModelFiles]] = {
        DENSE: (open_runtime("torch"), zeros),
        ZEROS: (by_onnxruntime, zeros),
        COMPACTED: (by_onnxruntime, compacted),
        SPARSE: (open_runtime("numba-sparse"), compacted),
    }
    prepared = {name: runtime.prepare(files, {}, 1) for name, (runtime, files) in runtimes.items()}
    runs = {name: partial(each.run, inputs) for name, each in prepared.items()}
    expected = runs[DENSE]()
    for run in runs.values():
        for name, array in run().items():
            np.testing.assert_allclose(array, expected[name], 1e-4, 1e-5)  # type: ignore[arg-type]  # floats
    return runs


def _repeated(run: Callable[[], object], calls: int) -> Callable[[], None]:
    def turn() -> None:
        for _ in range(calls):
            run()

    return turn


def _units(network: Network) -> str:
    weights = [θ for θ in network.module.parameters() if θ.ndim == 2]
    return "-".join(str(size) for size in [weights[0].shape[1], *(len(weight) for weight in weights)])


if __name__ == "__main__":
    run_main(main)
