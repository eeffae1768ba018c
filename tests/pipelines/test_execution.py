import platform
import subprocess
import sys

import pytest

CODE = """
import resource
import torch
from pipelines.engine.execution import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(4_000_000).sum()  # 16 MB, i.e. 3,900 pages
        torch.ones(16_000_000).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = faults()
keep_freed_memory()
faults()
print(given_back, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
def test_memory_of_freed_arrays_is_used_again():
    """The system hands out, and clears, no page a second time."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    given_back, kept = map(int, done.stdout.split())
    assert given_back > 20 * 1_000
    assert kept < 100
