"""Kept weights alone beside dense and CSR products, and a masked step: `python -m benchmarks.kernels`.

Networks have two hidden layers; inputs and outputs are as wide. `accelerate`'s network, PyTorch's layers with
zeros in them, and CSR matrices of PyTorch (MKL) and SciPy take turns, on one thread. A number is how many
times as fast as the dense layers. The last table has a training step of a ResNet-18 under masks.
"""

import argparse
import itertools
from collections.abc import Callable

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

import singleshot
from benchmarks.command import positive, run_main
from benchmarks.paired import heading, print_table, take_turns
from singleshot.io.vision import models

SECONDS = 0.05
"""How long a variant works in a round."""


def main() -> None:
    """Measure and print tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--widths", type=positive(int), nargs="+", default=[256, 1024])
    parser.add_argument("--sparsities", type=float, nargs="+", default=[0.5, 0.75, 0.9, 0.95])
    parser.add_argument("--batches", type=positive(int), nargs="+", default=[1, 100, 256])
    parser.add_argument("--rounds", type=positive(int), default=7)
    parser.add_argument(
        "--busy", type=float, default=0.95, help="share of a core below which a round is disturbed"
    )
    settings = parser.parse_args()
    torch.set_num_threads(1)
    print(heading("torch", "numba", "scipy"))
    each = itertools.product(settings.widths, settings.sparsities, settings.batches)
    columns = (
        "width",
        "sparsity",
        "batch",
        "dense, µs",
        "kept weights",
        "CSR, torch",
        "CSR, SciPy",
        "training step",
    )
    print_table(columns, (_row(*own, settings.rounds, settings.busy) for own in each))
    print()
    print_table(
        ["a step of ResNet-18, relative to without masks"], [[_masked_step(settings.rounds, settings.busy)]]
    )


def _row(width: int, sparsity: float, batch: int, rounds: int, busy: float) -> list[object]:
    torch.manual_seed(0)
    model = nn.Sequential(*[each for _ in range(3) for each in (nn.Linear(width, width), nn.ReLU())][:-1])
    singleshot.apply(
        model, singleshot.prune(model, lambda m: m(torch.ones(1, width)).sum(), sparsity, "random")
    )
    fast, x = singleshot.accelerate(model), torch.randn(batch, width)
    layers = [each for each in model if isinstance(each, nn.Linear)]
    torch_csr = [(each.weight.detach().to_sparse_csr(), each.bias.detach()[:, None]) for each in layers]
    scipy_csr = [
        (csr_array(each.weight.detach().numpy()), each.bias.detach().numpy()[:, None]) for each in layers
    ]

    def by_torch() -> Tensor:
        h = x.T.contiguous()
        for i, (weight, bias) in enumerate(torch_csr):
            h = weight @ h + bias
            h = h.relu_() if i < len(torch_csr) - 1 else h
        return h.T

    def by_scipy() -> np.ndarray:
        h = np.ascontiguousarray(x.numpy().T)
        for i, (weight, bias) in enumerate(scipy_csr):
            h = weight @ h + bias
            h = np.maximum(h, 0, out=h) if i < len(scipy_csr) - 1 else h
        return h.T

    def without_gradients(compute: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad():
                for _ in range(calls):
                    compute()

        return run

    def steps(network: nn.Module) -> Callable[[], None]:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.0)

        def run() -> None:
            for _ in range(-(-calls // 4)):
                optimizer.zero_grad()
                network(x).square().mean().backward()
                optimizer.step()

        return run

    calls = max(1, round(SECONDS / (3 * width**2 * batch / 2e10 + 2e-5)))
    forward = {"dense": lambda: model(x), "kept": lambda: fast(x), "torch": by_torch, "scipy": by_scipy}
    variants = {name: without_gradients(compute) for name, compute in forward.items()}
    variants |= {"dense step": steps(nn.Sequential(*map(_copy, model))), "step": steps(fast)}
    with torch.no_grad():
        for own in forward.values():
            np.testing.assert_allclose(np.asarray(own()), model(x).numpy(), rtol=1e-3, atol=1e-4)
    found = take_turns(variants, rounds, busy=busy)
    times = [f"{found.speedup(name, 'dense', 'cpu').median:.2f}" for name in ("kept", "torch", "scipy")]
    step = f"{found.speedup('step', 'dense step', 'cpu').median:.2f}"
    return [width, sparsity, batch, f"{1e6 * found.seconds('dense').cpu / calls:.0f}", *times, step]


def _copy(layer: nn.Module) -> nn.Module:
    """The layer without masks."""
    if not isinstance(layer, nn.Linear):
        return layer
    copied = nn.Linear(layer.in_features, layer.out_features)
    copied.load_state_dict(layer.state_dict())
    return copied


def _masked_step(rounds: int, busy: float) -> str:
    """Batches of 4 pictures of 64 x 64 pixels, at a sparsity of 0.9, by AdamW."""
    x, y = torch.randn(4, 3, 64, 64), torch.tensor([1, 5, 3, 9])

    def step(network: nn.Module) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(network.parameters())

        def run() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()

        return run

    dense, masked = models.resnet18(num_classes=10), models.resnet18(num_classes=10)
    singleshot.apply(masked, singleshot.prune(masked, lambda m: m(x).sum(), 0.9, "magnitude"))
    found = take_turns({"dense": step(dense), "masked": step(masked)}, rounds, busy=busy)
    return str(found.speedup("dense", "masked", "cpu"))


if __name__ == "__main__":
    run_main(main)
