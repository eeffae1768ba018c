"""Stages that a process named dvc runs, one after another."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
from waiting import wait_until

ROOT = Path(__file__).parents[2]
DVC = """
import subprocess, sys
for line in sys.stdin:
    stage = subprocess.run([sys.executable, "stage.py", *line.split()], stdin=subprocess.DEVNULL)
    print("status", stage.returncode, flush=True)
"""


@contextlib.contextmanager
def started_dvc(directory: Path, stage: str) -> Iterator[subprocess.Popen]:
    """A process named dvc in `directory`, which runs the program `stage` whenever it is told to."""
    (directory / "stage.py").write_text(stage)
    (directory / "dvc").write_text(DVC)
    (directory / ".dvc/tmp").mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "dvc"],
        cwd=directory,
        env=os.environ | {"DVC_STAGE": "evaluate", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def start_stage(dvc: subprocess.Popen, *arguments: str) -> None:
    """Let `dvc` start a stage with these arguments."""
    dvc.stdin.write(" ".join(arguments) + "\n")
    dvc.stdin.flush()


def until(dvc: subprocess.Popen, beginning: str) -> str:
    """What `dvc` and its stages print, up to a line with this beginning."""
    lines = [dvc.stdout.readline()]
    while lines[-1] and not lines[-1].startswith(beginning):
        lines.append(dvc.stdout.readline())
    return "".join(lines)


def run_stage(dvc: subprocess.Popen, *arguments: str) -> str:
    """What a stage of `dvc` prints, and its exit status in the last line."""
    start_stage(dvc, *arguments)
    return until(dvc, "status")


def helper_of(dvc: subprocess.Popen, module: str) -> psutil.Process:
    """The process that runs `module` for `dvc`."""
    command = ["-m", module, str(dvc.pid)]

    def found() -> psutil.Process | None:
        # A zombie has no command line, and a process that starts has none yet.
        every = psutil.process_iter(["cmdline"])
        return next((process for process in every if (process.info["cmdline"] or [])[1:4] == command), None)

    return wait_until(found, f"{module} runs")
