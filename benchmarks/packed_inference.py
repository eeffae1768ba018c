"""A pruned actor out of its packed file, beside the dense one: `python -m benchmarks.packed_inference AGENT`.

AGENT is a BCQ agent's packed file, or its agent.safetensors, which is packed first. Its 400-300 actor goes,
unpacked, without the hidden units that pruning made useless through ONNX to onnxruntime; and with its kept
weights alone through the kernels that train sparse networks. The dense one, of the same sizes with zeros for
pruned weights, runs in PyTorch as it is (eager) and in onnxruntime. One thread. Outputs are compared first.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from benchmarks.command import run_main
from benchmarks.paired import heading, table, take_turns
from tasks.deployment.export import to_onnx
from tasks.deployment.network import Network
from tasks.deployment.onnx_model import Form, GraphCard, GraphInput
from tasks.errors import UserError
from tasks.sparse.compaction import Layer, compact
from tasks.sparse.packed import is_packed, pack, read_packed, read_safetensors, unpack
from tasks.sparse.perceptron import SparsePerceptron

LAYERS = ("actor.pi.0", "actor.pi.1", "actor.pi.2")
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
    layers = _actor(path)
    compacted = compact(layers)
    print(heading("torch", "onnxruntime"))
    print(f"Units {_units(layers)}; compacted {_units(compacted)}.\n")
    for batch, calls in CALLS.items():
        state = torch.randn(batch, layers[0].weight.shape[1], generator=torch.Generator().manual_seed(0))
        runs = _variants(layers, compacted, state)
        comparison = take_turns({name: _repeated(run, calls) for name, run in runs.items()})
        rows = []
        for name in runs:
            seconds, speedup = comparison.seconds(name), comparison.speedup(name, DENSE)
            by_cpu = comparison.speedup(name, DENSE, "cpu")
            wall, cpu = (f"{1e6 * each / calls:.1f}" for each in (seconds.wall, seconds.cpu))
            rows.append((name, wall, cpu, speedup, by_cpu))
        print(f"Batch {batch}. {comparison.remark}\n")
        print(table(("way", "µs", "CPU µs", "times as fast", "by CPU time"), rows) + "\n")


def _actor(path: Path) -> list[Layer]:
    """Of a BCQ agent; UserError if the file is none's."""
    if not path.is_file():
        raise UserError(f"{path}: not a file; name a BCQ agent's packed file or its agent.safetensors")
    packed = read_packed(path) if is_packed(path) else unpack(pack(read_safetensors(path)))
    tensors = packed.model.tensors
    try:
        return [Layer(tensors[f"{layer}.weight"], tensors[f"{layer}.bias"]) for layer in LAYERS]
    except KeyError as error:
        raise UserError(f"{path}: no BCQ agent, as it has no tensor {error}; name a BCQ agent's") from error


def _variants(
    layers: list[Layer], compacted: list[Layer], state: Tensor
) -> Mapping[str, Callable[[], object]]:
    """What to time, after a look at whether all compute the same."""
    dense = _module(layers)
    array = state.numpy()
    zeros, small = (_session(own, form) for own, form in ((layers, "masked"), (compacted, "compacted")))

    @torch.inference_mode()
    def eager() -> Tensor:
        return dense(state)

    sparse, parameters = _sparse(layers)

    @torch.inference_mode()
    def alone() -> Tensor:
        return sparse(parameters, state[None])[0][0]

    runs = {
        DENSE: eager,
        ZEROS: lambda: zeros.run(None, {"input": array})[0],
        COMPACTED: lambda: small.run(None, {"input": array})[0],
        SPARSE: alone,
    }
    for run in runs.values():
        np.testing.assert_allclose(np.asarray(run()), np.asarray(eager()), rtol=1e-4, atol=1e-5)
    return runs


def _repeated(run: Callable[[], object], calls: int) -> Callable[[], None]:
    def turn() -> None:
        for _ in range(calls):
            run()

    return turn


def _module(layers: list[Layer]) -> nn.Sequential:
    modules: list[nn.Module] = []
    for layer in layers:
        linear = nn.Linear(layer.weight.shape[1], layer.weight.shape[0])
        linear.load_state_dict({"weight": layer.weight, "bias": layer.bias})
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1]).eval()


def _sparse(layers: list[Layer]) -> tuple[SparsePerceptron, Tensor]:
    """And its parameters."""
    weights = {str(i): layer.weight.T[None] for i, layer in enumerate(layers)}
    biases = {str(i): layer.bias[None, None] for i, layer in enumerate(layers)}
    *hidden, head = weights
    graph = SparsePerceptron.of(hidden, [head], {name: weight[0] != 0 for name, weight in weights.items()})
    return graph, graph.gather(weights, biases)


def _session(layers: list[Layer], form: Form) -> onnxruntime.InferenceSession:
    given = (GraphInput("input", ("batch", layers[0].weight.shape[1]), -1, 1),)
    network = Network("policy", form, _module(layers), given, ("action",), 0.95, {})
    card = GraphCard("policy", "actor", form, 0.95, "unknown", "", given, ("action",), {})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    graph = to_onnx(network, card, opset=20).SerializeToString()
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def _units(layers: list[Layer]) -> str:
    return "-".join(str(size) for size in [layers[0].weight.shape[1], *(len(each.bias) for each in layers)])


if __name__ == "__main__":
    run_main(main)
