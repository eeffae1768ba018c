import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import small_graphs
import toy_worker
from waiting import PATIENCE_S, wait_until

from singleshot.export import isolation
from singleshot.export.isolation import Worker, WorkerFailed
from singleshot.export.runtimes.protocol import ModelFiles

STATES = np.random.default_rng(0).standard_normal((3, 2, small_graphs.STATE), np.float32)
"""Three batches of two."""


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    monkeypatch.setattr(isolation, "WORKER", "toy_worker")


@pytest.fixture
def model(tmp_path):
    small_graphs.write_bc(tmp_path / "bc.onnx")
    return ModelFiles(tmp_path / "bc.onnx", tmp_path / "no source", "dense")


def is_running(pid):
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("name", ["toy", "toy-chatters"])
def test_every_batch_gets_its_answer(model, name):
    with Worker(name, time_limit_s=PATIENCE_S) as worker:
        assert worker.describe().unavailable is None
        report = worker.prepare(model, {"state": STATES}, threads=1)
        samples = worker.measure(calls=4)
    np.testing.assert_allclose(report.outputs["action"], small_graphs.bc_action(STATES), atol=1e-6)
    assert report.precision == "float32"
    assert len(samples.wall_s) == len(samples.cpu_s) == 4
    assert min(samples.wall_s) > 0


def test_what_cannot_run_here_says_why():
    with Worker("toy-missing", time_limit_s=PATIENCE_S) as worker:
        assert worker.describe().unavailable == "no such accelerator"


def test_one_that_raises_gives_a_line_and_lives(model):
    with Worker("toy-raises", time_limit_s=PATIENCE_S) as worker:
        for _ in range(2):
            with pytest.raises(WorkerFailed, match=r"^ValueError: no operator Foo in (line ){33}…$"):
                worker.prepare(model, {"state": STATES}, threads=1)
        assert worker.alive


def test_one_that_dies_gives_the_signal_and_its_last_words(model):
    with Worker("toy-dies", time_limit_s=PATIENCE_S) as worker:
        with pytest.raises(WorkerFailed, match=r"^killed by SIGSEGV: Fatal: bad kernel$"):
            worker.prepare(model, {"state": STATES}, threads=1)
        assert not worker.alive
        with pytest.raises(WorkerFailed, match="killed by SIGSEGV"):
            worker.describe()


def test_workers_of_a_runtime_are_forks_of_one_import(model):
    """The next one has nothing of the one before, whether that has ended well or not."""
    for name in ["toy", "toy-dies"]:
        processes = []
        for _ in range(2):
            with Worker(name, time_limit_s=PATIENCE_S) as worker:
                worker.describe()
                template = psutil.Process(worker._template._process.pid)
                processes.append((template.pid, [child.pid for child in template.children()]))
                with pytest.raises(WorkerFailed, match="AssertionError"):
                    worker.measure(calls=1)  # no network is prepared
                with contextlib.suppress(WorkerFailed):
                    worker.prepare(model, {"state": STATES}, threads=1)
        (first, forks), (second, others) = processes
        assert first == second
        assert len(forks) == len(others) == 1
        assert forks != others


def test_a_template_that_was_killed_is_replaced(model):
    with Worker("toy", time_limit_s=PATIENCE_S) as worker:
        worker.describe()
        os.kill(worker._template._process.pid, signal.SIGKILL)
        with pytest.raises(WorkerFailed, match=r"^killed by SIGKILL$"):
            worker.prepare(model, {"state": STATES}, threads=1)
    with Worker("toy", time_limit_s=PATIENCE_S) as worker:
        assert worker.describe().unavailable is None


def test_one_that_cannot_be_imported_gives_the_error():
    with (
        Worker("no such toy", time_limit_s=PATIENCE_S) as worker,
        pytest.raises(WorkerFailed, match=r"^ended with status 1: KeyError: 'no such toy'$"),
    ):
        worker.describe()


def test_one_that_hangs_is_killed_with_all_it_started(model):
    with Worker("toy-hangs", time_limit_s=PATIENCE_S) as worker:
        worker.describe()
        template = psutil.Process(worker._template._process.pid)
        running = [template, *template.children()]
        assert len(running) == 3  # the template, what it has started, and the worker
        worker.time_limit_s = 1
        with pytest.raises(WorkerFailed, match=r"^no answer within 1 s$"):
            worker.prepare(model, {"state": STATES}, threads=1)
        assert not worker.alive
    wait_until(lambda: not any(is_running(each.pid) for each in running), "the worker and its child end")


def test_it_dies_with_its_parent_in_the_middle_of_a_call(model, tmp_path):
    code = f"""
from pathlib import Path
import numpy as np
from singleshot.export import isolation
from singleshot.export.runtimes.protocol import ModelFiles
isolation.WORKER = "toy_worker"
model = ModelFiles(Path({str(model.onnx)!r}), Path("none"), "dense")
isolation.Worker("toy-hangs", 1000).prepare(model, {{"state": np.zeros((1, 2, 17), "float32")}}, 1)
"""
    path = os.pathsep.join([str(isolation.ROOT), os.environ["PYTHONPATH"]])
    environment = os.environ | {"PYTHONPATH": path, "HANGING_CHILD": str(tmp_path / "pids")}
    environment["TMPDIR"] = str(tmp_path)  # killed, it leaves its files behind
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment)
    pids = tmp_path / "pids"
    wait_until(lambda: pids.is_file() and len(pids.read_text().split()) == 2, "the worker hangs")
    worker, child = map(int, pids.read_text().split())
    assert is_running(worker)
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_running(worker), "the worker ends")
    os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_peak_memory_is_that_of_the_network_prepared_last(model):
    with Worker("toy-greedy", time_limit_s=PATIENCE_S) as worker:
        worker.prepare(model, {"state": STATES}, threads=1)
        greedy = worker.measure(calls=1).peak_memory_bytes
        worker.prepare(model, {"state": STATES[:, :1]}, threads=1)
        modest = worker.measure(calls=1).peak_memory_bytes
    assert greedy - modest == pytest.approx(toy_worker.MEGABYTES * 1e6, rel=0.2)
