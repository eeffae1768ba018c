"""Time of `make repro` in a fresh clone, stage by stage: `python -m benchmarks.repro`.

For the installation, each stage of `make repro` and a second `make repro`, the table has wall-clock seconds,
the seconds that all cores worked, and the idle share of the cores' time. These times are the whole machine's,
so run it on a machine with nothing else to do. Only committed changes are measured.
"""

import argparse
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import psutil

from benchmarks.command import run_main
from benchmarks.paired import heading, print_table
from singleshot.errors import UserError

ROOT = Path(__file__).parents[1]
STAGE = "Running stage '"
"""Beginning of the line that DVC prints when it starts a stage."""
PROFILES = ("smoke", "default")


@dataclass(frozen=True)
class Moment:
    """Readings of three clocks: wall time, and the time that all cores were busy and idle."""

    wall: float
    busy: float
    idle: float

    @classmethod
    def now(cls) -> "Moment":
        """Read the clocks of the whole machine."""
        cores = psutil.cpu_times()
        idle = cores.idle + getattr(cores, "iowait", 0.0)
        return cls(perf_counter(), sum(cores[:8]) - idle, idle)

    def since(self, earlier: "Moment") -> tuple[str, str, str]:
        """Wall-clock seconds, busy core-seconds, and the idle percentage of the cores' time."""
        busy, idle = self.busy - earlier.busy, self.idle - earlier.idle
        at_rest = (
            idle / (busy + idle) if busy + idle else 0.0
        )  # 0 if no clock has ticked: cores' clocks tick a hundred times a second
        return f"{self.wall - earlier.wall:.1f}", f"{busy:.1f}", f"{at_rest:.0%}"


def main() -> None:
    """Print a table, each row as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--profile", choices=PROFILES, default="default")
    profile = parser.parse_args().profile
    print(heading("dvc", "ray", "torch", threads=psutil.cpu_count() or 1))
    with tempfile.TemporaryDirectory(prefix="singleshot-repro-") as name:
        clone = Path(name) / "clone"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        print_table(("what", "s", "core-seconds", "idle"), _rows(clone, profile))


def _rows(clone: Path, profile: str) -> Iterator[tuple[object, ...]]:
    for what, command in (("make install", ["install"]), ("make params", ["params", f"PROFILE={profile}"])):
        began = Moment.now()
        list(_lines(clone, command))
        yield what, *Moment.now().since(began)
    began = previous = Moment.now()
    stage = "DVC's plan"
    for line in _lines(clone, ["repro"]):
        if line.startswith(STAGE):
            now = Moment.now()
            yield stage, *now.since(previous)
            stage, previous = line.removeprefix(STAGE).partition("'")[0], now
    now = Moment.now()
    yield stage, *now.since(previous)
    yield f"**make repro, profile {profile}**", *now.since(began)
    list(_lines(clone, ["repro"]))
    yield "a second make repro", *Moment.now().since(now)


def _lines(clone: Path, arguments: list[str]) -> Iterator[str]:
    """Run `make` and yield the lines that it prints.

    Raises:
        UserError: `make` failed.
    """
    # No settings of DVC, Ray and MLflow from this environment reach the clone, as if typed in a new shell.
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("DVC_", "RAY_", "MLFLOW_"))
    }
    command = ["make", *arguments]
    with subprocess.Popen(
        command, cwd=clone, env=kept | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode:
        raise UserError(f"{' '.join(command)} in a fresh clone ended with status {process.returncode}")


if __name__ == "__main__":
    run_main(main)
