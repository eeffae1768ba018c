"""Where results come from: the code that computed them, the machine, and the time it took."""

import dataclasses
import datetime
import functools
import json
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import joblib
import psutil


@dataclasses.dataclass(frozen=True)
class Machine:
    """The machine on which a cell was computed, without its host name, so that results can be published."""

    processor: str
    instructions: str
    """The vector instructions that PyTorch computes with, e.g. `AVX2`; others round differently."""
    cores: int
    """Number of cores that this process may use."""
    memory_gb: float
    gpu: str | None
    """None if the cell ran on the CPU."""


@dataclasses.dataclass(frozen=True)
class Made:
    """How a cell was made. The record is kept with the cell and is in no digest."""

    seconds: float
    """Duration of the attempt that finished the cell, which may have started at a checkpoint. For a cell of a
    stack, its share of the stack's duration."""
    finished: str
    """Time at which the cell was finished, in ISO 8601, UTC, to the second."""
    commit: str
    machine: Machine
    packages: dict[str, str]
    """The versions of Python and of the packages that the cell's digest covers."""

    @classmethod
    def now(cls, seconds: float, commit: str, device: str, packages: Mapping[str, str]) -> "Made":
        """The record of a cell that this process has just finished on the torch device `device`."""
        versions = {"python": platform.python_version(), **packages}
        finished = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return cls(round(seconds, 3), finished, commit, this_machine(device), versions)

    @classmethod
    def read(cls, record: dict[str, Any]) -> "Made":
        """The record that `dataclasses.asdict` has turned into `record`."""
        return cls(**{**record, "machine": Machine(**record["machine"])})


@functools.cache
def this_machine(device: str) -> Machine:
    """The machine on which this process runs."""
    import torch

    memory_gb = round(psutil.virtual_memory().total / 2**30, 1)
    gpu = torch.cuda.get_device_name() if device.startswith("cuda") else None
    instructions = torch.backends.cpu.get_cpu_capability()
    return Machine(processor(), instructions, joblib.cpu_count(), memory_gb, gpu)


def processor() -> str:
    """The processor's model name."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def git_commit() -> str:
    """The commit that is checked out; `unknown` without git or outside a repository."""
    if shutil.which("git") is None:
        return "unknown"
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def write_provenance(stage: str, profile: str, cells: Sequence[Made], path: Path) -> None:
    """Write a summary of the records of a stage's cells as JSON. A reused cell keeps its original record."""
    machines = Counter(made.machine for made in cells)
    by_age = sorted(cells, key=lambda made: made.finished)
    summary = {
        "stage": stage,
        "profile": profile,
        "cells": len(cells),
        "seconds": round(sum(made.seconds for made in cells), 1),
        "first": by_age[0].finished if cells else None,
        "last": by_age[-1].finished if cells else None,
        "commits": sorted({made.commit for made in cells}),
        "machines": [{**dataclasses.asdict(machine), "cells": n} for machine, n in machines.items()],
        "packages": {name: version for made in by_age for name, version in made.packages.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
