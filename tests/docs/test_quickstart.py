"""docs/quickstart.md: its script prints what stands below it, and is the example's."""

import re
import subprocess
import sys

import numpy as np
import pytest
from checkouts import ROOT
from pages import blocks

SCRIPT, PRINTED = (block.text for block in blocks("quickstart"))


def rows(printed):
    """Weights, accuracy in percent and packed bytes by way; times are the machine's."""
    lines = [line.replace(",", "").split() for line in printed.splitlines()[1:]]
    return {way: np.array(numbers[:3], float) for way, *numbers in lines}


def test_the_script_is_the_example_without_its_text():
    cells = (ROOT / "examples/prune_your_network.py").read_text().split("# %%")
    code = "".join(cell for cell in cells if not cell.startswith(" [markdown]"))
    assert re.sub(r"\n+", "\n", code).strip() == re.sub(r"\n+", "\n", SCRIPT).strip()


def test_the_script_prints_what_stands_below_it(tmp_path):
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == PRINTED.splitlines()[0]
    made, told = rows(done.stdout), rows(PRINTED)
    assert list(made) == list(told)
    for way, (weights, accuracy, size) in made.items():
        assert weights == told[way][0]
        assert accuracy == pytest.approx(told[way][1], abs=2)  # rounding differs by machine
        assert size == pytest.approx(told[way][2], rel=0.05)
