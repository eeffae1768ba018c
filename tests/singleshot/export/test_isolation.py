import sys

import numpy as np
import pytest
import small_graphs
import toy_runtimes
from waiting import PATIENCE_S

from singleshot.export.isolation import Worker
from singleshot.export.runtimes import RUNTIMES, Declared
from singleshot.export.runtimes.protocol import ModelFiles
from singleshot.io.own_process import ProcessFailed, TookTooLong

STATES = np.random.default_rng(0).standard_normal((3, 2, small_graphs.STATE), np.float32)
"""Three batches of two."""


@pytest.fixture
def model(tmp_path):
    small_graphs.write_bc(tmp_path / "bc.onnx")
    return ModelFiles(tmp_path / "bc.onnx", tmp_path / "no source", "dense")


@pytest.fixture
def prepare(toys, model, tmp_path):
    def prepare_on(name, states=STATES, time_limit_s=PATIENCE_S):
        worker = Worker(name, 1, time_limit_s)
        return worker, worker.prepare(model, {"state": states}, tmp_path)

    return prepare_on


@pytest.mark.parametrize("name", ["toy", "toy-chatters"])
def test_every_batch_gets_its_answer(prepare, name):
    worker, report = prepare(name)
    samples = worker.measure(calls=4)
    np.testing.assert_allclose(report.outputs["action"], small_graphs.bc_action(STATES), atol=1e-6)
    assert report.precision == "float32"
    assert len(samples.wall_s) == len(samples.cpu_s) == 4
    assert min(samples.wall_s) > 0


def test_what_cannot_run_here_says_why(toys):
    assert Worker("toy-missing", 1, PATIENCE_S).describe().unavailable == "no such accelerator"


def test_one_that_raises_gives_a_line(prepare):
    with pytest.raises(ProcessFailed, match=r"^ValueError: no operator Foo in (line ){33}…$"):
        prepare("toy-raises")


def test_one_that_dies_or_hangs_is_replaced(prepare):
    for _ in range(2):
        with pytest.raises(ProcessFailed, match=r"^killed by SIGSEGV: Fatal: bad kernel$"):
            prepare("toy-dies")
    Worker("toy-hangs", 1, PATIENCE_S).describe()
    with pytest.raises(TookTooLong, match=r"^no answer within 1 s$"):
        prepare("toy-hangs", time_limit_s=1)
    assert Worker("toy-hangs", 1, PATIENCE_S).describe().unavailable is None


def test_workers_of_a_runtime_share_its_process_unless_its_threads_are_final(toys, monkeypatch):
    final = Declared("toy_runtimes", (), threads_are_final=True)
    monkeypatch.setitem(RUNTIMES, "toy-missing", final)
    for name, shared in (("toy", True), ("toy-missing", False)):
        one, two = (Worker(name, threads, PATIENCE_S) for threads in (1, 2))
        assert (one._process is two._process) == shared
        assert Worker(name, 1, PATIENCE_S)._process is one._process


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_peak_memory_is_that_of_the_network_prepared_last(prepare):
    peaks = []
    for states in (STATES, STATES[:, :1]):
        worker, _ = prepare("toy-greedy", states)
        peaks.append(worker.measure(calls=1).peak_memory_bytes)
    assert peaks[0] - peaks[1] == pytest.approx(toy_runtimes.MEGABYTES * 1e6, rel=0.2)
