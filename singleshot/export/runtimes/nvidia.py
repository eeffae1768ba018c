"""The GPU that runtimes other than PyTorch find."""

import functools
import shutil
import subprocess


@functools.cache
def gpu_name() -> str | None:
    """Name of the first NVIDIA GPU, according to its driver; None without a GPU."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return answer.stdout.splitlines()[0].strip() if answer.returncode == 0 and answer.stdout else None
