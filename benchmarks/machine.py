"""What a benchmark says of the machine it ran on."""

import platform
from pathlib import Path


def processor() -> str:
    """The processor's model name."""
    with Path("/proc/cpuinfo").open() as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return models[0] if models else platform.processor()
