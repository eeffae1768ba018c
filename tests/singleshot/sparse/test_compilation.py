import json
import os
import subprocess
import sys

import pytest

from singleshot.sparse import kernels

CODE = """
import json
import numpy as np, torch
from singleshot.sparse import kernels
from singleshot.sparse.perceptron import ForwardPass, SparsePerceptron
generator = torch.Generator().manual_seed(0)
shapes = {"0": (7, 20), "1": (20, 20), "head": (20, 3)}
weights = {name: torch.randn(1, *shape, generator=generator) for name, shape in shapes.items()}
biases = {name: torch.randn(1, 1, shape[1], generator=generator) for name, shape in shapes.items()}
perceptron = SparsePerceptron.of(["0", "1"], ["head"], {name: w[0].abs() > 1 for name, w in weights.items()})
parameters = perceptron.gather(weights, biases).numpy()
state = torch.randn(50, 4, generator=generator).numpy()
action = torch.randn(150, 3, generator=generator).numpy()
y = perceptron.infer(parameters, state, action)
forward = ForwardPass(perceptron, parameters, action.repeat(3, 1)[:, :4].copy(), action)
gradients = forward.back(np.ones_like(forward.y), 3)
one = perceptron.infer(parameters, state[:1], action[:1])
each = [kernels.forward, kernels.forward_few, kernels.forward_one, kernels.share, kernels.backward]
print(json.dumps({
    "compiled": [sum(kernel.stats.cache_misses.values()) for kernel in each],
    "taken": [sum(kernel.stats.cache_hits.values()) for kernel in each],
    "results": [array.tobytes().hex() for array in (y, one, forward.y, *gradients)],
}))
"""


def compute(cache, **environment):
    """What a process compiled, took from the cache, and computed."""
    path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))  # noqa: PTH109
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": path} | environment
    answer = subprocess.run([sys.executable, "-c", CODE], env=environment, check=True, capture_output=True)
    return json.loads(answer.stdout)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def first(cache):
    return compute(cache)


@pytest.mark.slow
def test_kernels_are_compiled_once_for_each_processor(cache, first):
    again = compute(cache)
    other = compute(cache, NUMBA_CPU_NAME="generic")
    assert first["compiled"] == other["compiled"] == again["taken"] == [1, 1, 1, 1, 1]
    assert first["taken"] == other["taken"] == again["compiled"] == [0, 0, 0, 0, 0]
    assert again["results"] == first["results"]


def test_kernels_are_compiled_anew_after_a_change_of_a_source(monkeypatch, tmp_path):
    before = kernels.digest()
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "kernels.py"))
    for name in kernels.SOURCES:
        (tmp_path / name).write_text("# another version")
    assert kernels.digest() != before


@pytest.mark.slow
def test_kernels_run_where_nothing_can_be_kept(tmp_path, first):
    nowhere = tmp_path / "a file"
    nowhere.touch()
    assert compute(nowhere)["results"] == first["results"]
