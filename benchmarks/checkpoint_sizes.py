"""Bytes of trained agents in every storage format: `python -m benchmarks.checkpoint_sizes`.

The column `all` is for all networks of an agent in one file. The bound is log2 C(N, k) bits for a layer that
keeps k of N weights, and 32 bits for each kept value or bias. A format may beat the bound by exploiting
structure in masks or values.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from benchmarks.command import run_main
from benchmarks.paired import heading, table
from singleshot.errors import UserError
from singleshot.io.tensor_file import read_tensor_file
from singleshot.sparse.formats import measure
from tasks.measure_sizes import networks_of

AGENTS = Path("models/agents")


def main() -> None:
    """Print a Markdown table for each agent, with what made them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "agents",
        nargs="*",
        type=Path,
        metavar="AGENT",
        help="directories of agents; by default BCQ agents of seed 0 in models/agents, pruned by 95 %%",
    )
    agents: Sequence[Path] = parser.parse_args().agents or sorted(AGENTS.glob("*/bcq/*-0.95/seed-0"))
    if not agents:
        raise UserError(
            f"{AGENTS}: no BCQ agent of seed 0, pruned by 95 %; train some by `dvc repro agents`, "
            "or name agents' directories"
        )
    opened = {agent: _networks(agent / "agent.safetensors") for agent in agents}
    print(heading("torch", "constriction"))
    for agent, networks in opened.items():
        together = {f"{name}.{key}": t for name, own in networks.items() for key, t in own.items()}
        everything = {**networks, "all": together}
        print(f"## {'/'.join(agent.parts[-4:])}\n")
        print("Bytes (times fewer than dense; of the bound).\n")
        print(table(("format", *everything), _rows(everything)) + "\n")


def _networks(path: Path) -> Mapping[str, Mapping[str, Tensor]]:
    if not path.is_file():
        raise UserError(f"{path}: no such file; name agents' directories")
    networks = networks_of(read_tensor_file(path).tensors)
    if not networks:
        raise UserError(f"{path}: no network's weights in it; name an agent's directory")
    return networks


def _rows(networks: Mapping[str, Mapping[str, Tensor]]) -> Iterator[Sequence[str]]:
    measured = [measure(tensors) for tensors in networks.values()]
    for sizes in zip(*measured, strict=True):
        cells = (
            f"{size.bytes:,} ({size.ratio_to_dense:.2f}; {size.bytes / size.entropy_bound_bytes:.3f})"
            for size in sizes
        )
        yield sizes[0].format, *cells
    bounds = ((dense.bytes, dense.entropy_bound_bytes) for dense, *_ in measured)
    yield "bound", *(f"{bound:,} ({dense / bound:.2f}; 1)" for dense, bound in bounds)


if __name__ == "__main__":
    run_main(main)
