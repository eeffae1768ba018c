import dataclasses
import json
import multiprocessing
import re
import socket
import time
import weakref
from contextlib import nullcontext
from pathlib import Path

import joblib
import pathspec
import psutil
import pytest
import ray.exceptions
import torch
from toy_tasks.work import (
    KillParams,
    MeetParams,
    PreviewParams,
    SumParams,
    add_up,
    kill_worker,
    meet,
    show_previews,
)

from pipelines.engine import run
from pipelines.engine.cells import MANIFEST, Cell, CellStore
from pipelines.engine.on_ray import STARTS, _Input, fault, not_code, ray_cluster
from pipelines.engine.run import (
    TRANSIENT_RETRIES,
    CellBatch,
    CellsFailedError,
    ExecutorConfig,
    OutOfMemoryError,
    Sweep,
    batches,
    execute,
)
from pipelines.engine.stage import fan_out
from singleshot.errors import UserError
from singleshot.job import Progress

LOCAL = ExecutorConfig(kind="local")
RAY = ExecutorConfig(kind="ray")


class Recorder(run.Recorder):
    """What a tracker would be told, as a list."""

    def __init__(self):
        self.said = []

    def reused(self, cells, store):
        self.said.append(("reused", len(cells)))

    def started(self, cell):
        self.said.append(("started", cell.name))

    def metrics(self, cell, step, values):
        self.said.append(("metrics", cell.name, step, dict(values)))

    def artifact(self, cell, name, file):
        self.said.append(("artifact", name, file.read_text()))

    def finished(self, cell, directory):
        self.said.append(("finished", cell.name))

    def failed(self, cell, reason):
        self.said.append(("failed", cell.name))

    def about(self, kind):
        return [words[1:] for words in self.said if words[0] == kind]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    """Two cells run at a time, whatever the machine has."""
    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)


def sums(count, stack=None, **params):
    return [Cell(f"sum-{start}", add_up, SumParams(start, **params), stack=stack) for start in range(count)]


def contents(store, cells):
    return {
        file.relative_to(store.path(cell.digest)).as_posix() + cell.name: file.read_bytes()
        for cell in cells
        for file in store.path(cell.digest).iterdir()
        if file.name != MANIFEST  # which tells when the cell was made
    }


def test_local_computes_what_is_missing_and_reuses_the_rest(store, capsys, tmp_path):
    cells = sums(3)
    fan_out(cells[:2], LOCAL, store, Recorder())
    recorder = Recorder()
    fan_out(cells, LOCAL, store, recorder)
    assert "cells: 3 in all, 2 reused, 1 to compute" in capsys.readouterr().out
    assert recorder.about("started") == [("sum-2",)]
    # 1 + Σ (2 + step) for step 1 … 4, by hand
    assert json.loads((store.path(cells[2].digest) / "result.json").read_text())["sum"] == 1 + 3 + 4 + 5 + 6
    # A cell per core at a time: cells that wait for each other end.
    fan_out([Cell(name, meet, MeetParams(str(tmp_path), name, 2)) for name in "ab"], LOCAL, store, Recorder())


@pytest.mark.parametrize("given", ["../data/mine.txt", "/data/mine.txt"])
def test_inputs_arrive_in_the_workers_own_directory(given, tmp_path, monkeypatch):
    """Not beside it, where a `..` would lead, and where an older file may be."""
    monkeypatch.setattr("ray.get", lambda content: content)
    received = _Input(Path(given), {".": b"new"}).receive(tmp_path / "worker")
    assert received.resolve().is_relative_to(tmp_path / "worker")
    assert (received.name, received.read_text()) == ("mine.txt", "new")


def test_a_failed_cell_goes_on_from_its_checkpoint(store, capsys):
    class Stop(Recorder):
        def metrics(self, cell, step, values):
            super().metrics(cell, step, values)
            if step == 3:
                raise KeyboardInterrupt

    (cell,) = sums(1)
    with pytest.raises(KeyboardInterrupt):
        fan_out([cell], LOCAL, store, Stop())
    recorder = Recorder()
    fan_out([cell], LOCAL, store, recorder)
    assert "(1 from a checkpoint)" in capsys.readouterr().out
    assert [step for _, step, _ in recorder.about("metrics")] == [3, 4]
    undisturbed = CellStore(store.root.with_name("undisturbed"))
    fan_out([cell], LOCAL, undisturbed, Recorder())
    assert contents(store, [cell]) == contents(undisturbed, [cell])


def test_a_cluster_that_started_anew_while_cells_ran_is_one_clear_error(monkeypatch):
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr("pipelines.engine.on_ray.check_joinable", lambda _: None)
    with (
        pytest.raises(UserError, match=r"10\.0\.0\.1:6379 was lost: AuthenticationError"),
        ray_cluster(ExecutorConfig(kind="ray", address="10.0.0.1:6379")),
    ):
        raise ray.exceptions.AuthenticationError("RPC error: WrongClusterID")


@pytest.mark.parametrize(
    "given", [{"num_cpus": 2}, {"memory_gb": 0.6 * psutil.virtual_memory().total / 2**30}]
)
def test_cells_with_several_threads_or_much_memory_run_one_by_one(store, given):
    recorder = Recorder()
    fan_out(sums(2), dataclasses.replace(LOCAL, **given), store, recorder)
    course = [kind for kind, *_ in recorder.said if kind in {"started", "finished"}]
    assert course == ["started", "finished", "started", "finished"]


def test_an_interrupted_driver_takes_its_forks_along(store, tmp_path):
    class Interrupted(Recorder):
        def metrics(self, cell, step, values):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fan_out(sums(4, seconds=0.1, steps=10_000), LOCAL, store, Interrupted())
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:10001", "127.0.0.1:{port}"])
def test_a_cluster_that_can_not_be_joined_is_one_clear_error(store, monkeypatch, address):
    monkeypatch.setattr("psutil.process_iter", lambda _: [])  # as seen from a machine without Ray
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = address.format(port=listening.getsockname()[1])
        with pytest.raises(UserError, match=re.escape(f"Ray cluster {address}: ")):
            fan_out(sums(2), dataclasses.replace(RAY, address=address), store, Recorder())


def test_code_is_sent_to_a_cluster_also_modules_of_the_users_own_and_nothing_else(tmp_path):
    """Ray excludes patterns as of .gitignore: a folder `old [1]` was sent, and a module cart.py was not."""
    code = {"singleshot/__init__.py", "cart.py", "carts/__init__.py", "dvc.yaml"}
    for name in (*code, "old [1]/a", "#old!/a", "data/a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    excluded = pathspec.GitIgnoreSpec.from_lines(not_code(tmp_path))
    sent = {file for file in tmp_path.rglob("*") if not excluded.match_file(file.relative_to(tmp_path))}
    names = {file.relative_to(tmp_path).as_posix() for file in sent if file.is_file()}
    assert names == code


def test_batches_stack_only_what_may_be_stacked_and_stands_at_the_same_step(store):
    together = sums(5, stack="s")
    alone = [Cell("alone", add_up, SumParams(9))]
    store.save_checkpoint(together[1], 2, b"")
    store.save_checkpoint(together[4], 2, b"")
    names = [
        [cell.name for cell in batch.cells] for batch in batches([*together, *alone], store, stack_size=2)
    ]
    assert names == [["sum-0", "sum-2"], ["sum-3"], ["sum-1", "sum-4"], ["alone"]]


@pytest.mark.parametrize(
    ("kind", "words", "hidden"),
    [
        (torch.OutOfMemoryError, "CUDA out of memory", True),
        (MemoryError, "", False),
        (RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", False),
    ],
)
def test_what_ran_out_of_memory_leaves_none_of_it_occupied(store, kind, words, hidden):
    """Nor does it matter if cleaning up (the end of a CUDA graph's capture) failed too."""
    held = []

    def task(jobs):
        stack = [torch.zeros(10)]
        stack.append(stack)  # as one does whose step refers to it
        held.append(weakref.ref(stack[0]))
        yield Progress(0.5)
        try:
            raise kind(words)
        finally:
            if hidden:
                raise RuntimeError("operation failed due to a previous error during capture")

    events = execute(CellBatch((Cell("greedy", task, None),)), [{}], [None], LOCAL, gpu=False)
    assert next(events) == Progress(0.5)
    assert held[0]() is not None
    with pytest.raises(OutOfMemoryError):
        next(events)
    assert held[0]() is None


def test_a_worker_killed_for_memory_is_halved_and_alone_tried_again_then_given_up(store):
    """Ray kills the greediest of a node's workers; alone, it may have been the others' fault."""
    killed = ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.\nMore")
    cells = sums(3, stack="s")
    sweep = Sweep(cells, store, Recorder())

    def again(batch):
        return sweep.ended(batch, fault(batch, killed))

    assert [len(batch.cells) for batch in again(CellBatch(tuple(cells), 1))] == [2, 1]
    (retried,) = again(CellBatch((cells[0],), 1))
    assert (retried.cells, retried.attempt) == ((cells[0],), 2)
    assert again(CellBatch((cells[0],), TRANSIENT_RETRIES)) == []
    with pytest.raises(UserError, match=r"^sum-0: out of memory .*node running low on memory\.\).*memory_gb"):
        sweep.raise_failures()


@pytest.mark.parametrize(("cells", "start_ray"), [(1, True), (3, False)])
def test_ray_is_not_started_for_one_cell_or_unasked(store, monkeypatch, cells, start_ray):
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was started"))
    fan_out(sums(cells), RAY, store, Recorder(), start_ray=start_ray)
    assert all(store.has(cell) for cell in sums(cells))


@pytest.mark.parametrize(("slow_starts", "ends_well"), [(2, True), (99, False)])
def test_ray_is_started_again_where_it_was_too_slow(slow_starts, ends_well, monkeypatch, capsys):
    starts = []

    def start(**options):
        starts.append(options)
        if len(starts) <= slow_starts:
            raise Exception("The current node timed out during startup. This could happen because …")

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with nullcontext() if ends_well else pytest.raises(UserError, match="too busy"):  # noqa: SIM117
        with ray_cluster(ExecutorConfig(kind="ray")):
            assert len(starts) == slow_starts + 1
    assert capsys.readouterr().err.count("starting it again") == min(slow_starts, STARTS)


@pytest.mark.slow
def test_ray_is_started_beside_a_cluster_that_nobody_named(cluster, monkeypatch):
    """Ray by itself would join any that it finds on the machine, and give up one that is only busy."""
    for times in ("initial_delay", "period", "timeout"):
        monkeypatch.setenv(f"RAY_health_check_{times}_ms", "100")
    others = set(raylets())
    with ray_cluster(RAY):
        assert ray.get_runtime_context().gcs_address != cluster.address
        (raylet,) = set(raylets()) - others
        raylet.suspend()
        time.sleep(2)  # of five checks that fail, each after 100 ms, Ray would conclude that it is dead
        raylet.resume()
        assert ray.get(ray.remote(lambda: 1).remote()) == 1


@pytest.mark.slow
def test_rays_own_node_that_was_killed_is_one_clear_error(store, monkeypatch):
    """Ray takes the cells that go on from their checkpoints for pending, and waits for ever."""
    monkeypatch.setattr("pipelines.engine.on_ray.PATIENCE_S", 2)
    others = set(raylets())

    class Kills(Recorder):
        def started(self, cell):
            for raylet in set(raylets()) - others:
                raylet.kill()

    with pytest.raises(UserError, match=r"on this machine was lost: LocalRayletDiedError.*continues"):
        fan_out(sums(5, seconds=1.0), RAY, store, Kills(), start_ray=True)


def raylets():
    return [child for child in psutil.Process().children(recursive=True) if child.name() == "raylet"]


# These tests come last, as Ray stays joined after the first that needs it.


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What five stacked cells leave."""
    cells, store = sums(5, stack="s"), CellStore(tmp_path_factory.mktemp("undisturbed") / "cells")
    fan_out(cells, dataclasses.replace(LOCAL, stack_size=5), store, Recorder())
    return contents(store, cells)


@pytest.fixture(scope="module")
def joined(undisturbed, cluster):
    """The cluster, joined once: for each that joins it, workers start and import, which takes seconds.

    After the other fixture: a process that has joined may not fork.
    """

    def join_again(config):
        assert config.address == cluster.address
        return nullcontext()

    with ray_cluster(cluster), pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.engine.stage.ray_cluster", join_again)
        yield cluster


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.slow)])
def executor(request):
    return LOCAL if request.param == "local" else request.getfixturevalue("joined")


def test_a_failing_cell_is_named_and_costs_no_other(store, executor):
    cells = [*sums(2), Cell("broken", add_up, SumParams(7, fail_at=3)), *sums(5)[3:]]
    recorder = Recorder()
    with pytest.raises(CellsFailedError, match="ZeroDivisionError: the toy broke") as failure:
        fan_out(cells, executor, store, recorder)
    assert "cell broken failed" in str(failure.value)
    assert '"start": 7' in str(failure.value)
    assert recorder.about("failed") == [("broken",)]
    assert len(recorder.about("started")) == 5  # a deterministic exception is not retried
    assert [store.has(cell) for cell in cells] == [True, True, False, True, True]


def test_a_users_mistake_and_too_little_memory_are_a_line_that_names_the_setting(store, executor):
    with pytest.raises(UserError, match=r"^bad: toy\.txt: bad value 7; write 8$"):
        fan_out([Cell("bad", add_up, SumParams(0, user_error_at=1))], executor, store, Recorder())
    with pytest.raises(UserError, match=r"^sum-0: out of memory .*2\.00 GiB.*num_gpus.*memory_gb.*device"):
        fan_out(sums(1, room=0), executor, store, Recorder())


def test_a_tracker_that_is_gone_is_no_failure_of_a_cell(store, executor, monkeypatch):
    """It buffers metrics, so it fails in a flush: no checkpoint and no cell is stored without its metrics."""

    def flush(self):
        raise ConnectionError("MLflow is gone")

    monkeypatch.setattr(Recorder, "flush", flush)
    cells, recorder = [*sums(3), *sums(5, steps=0)[3:]], Recorder()
    for kind in (cells[:3], cells[3:]):  # those that yield checkpoints, and those that yield only files
        with pytest.raises(ConnectionError, match="MLflow is gone"):
            fan_out(kind, executor, store, recorder)
    assert recorder.about("failed") == []
    assert not any(store.has(cell) or store.checkpoint(cell) for cell in cells)


def test_a_killed_worker_goes_on_from_its_checkpoint_and_one_that_always_dies_is_given_up(
    store, executor, tmp_path
):
    cells = []
    for name, times in (("killed", 2), ("dies", 99)):
        (tmp_path / name).mkdir()
        cells.append(Cell(name, kill_worker, KillParams(str(tmp_path / name), str(store.root), times)))
    recorder = Recorder()
    with pytest.raises(CellsFailedError, match=r"WorkerCrashedError|its process ended with SIGKILL"):
        fan_out([*cells, *sums(1)], executor, store, recorder)
    assert len(list((tmp_path / "killed").iterdir())) == 2
    assert (store.path(cells[0].digest) / "went_on_from").read_text() == str(tmp_path / "killed")
    told = [metrics for metrics in recorder.about("metrics") if metrics[0] == "killed"]
    assert told == [("killed", 1, {"step": 1}), ("killed", 2, {"step": 2})]
    assert len(list((tmp_path / "dies").iterdir())) == 4  # the first try and three more
    assert recorder.about("failed") == [("dies",)]
    assert store.has(*sums(1))


def test_a_stack_that_runs_out_of_memory_is_halved_and_ends_with_the_same_bytes(
    store, undisturbed, executor, caplog
):
    """Five at once, then three and two; of the three, two and one."""
    cells = sums(5, stack="s", room=2)
    recorder = Recorder()
    fan_out(cells, dataclasses.replace(executor, stack_size=5), store, recorder)
    assert [record.args[1] for record in caplog.records if "out of memory" in record.message] == [5, 3]
    assert "CUDA out of memory. Tried to allocate 2.00 GiB" in caplog.text
    # Each step is computed once: what was halved went on from its checkpoints.
    assert sorted(words[:2] for words in recorder.about("metrics")) == [
        (cell.name, step) for cell in cells for step in range(1, 5)
    ]
    assert contents(store, cells) == undisturbed


def test_artifacts_are_shown_at_once_and_kept_over_a_failure(executor, store, monkeypatch):
    monkeypatch.setattr("pipelines.engine.run.git_commit", lambda: "0123abc")
    recorder = Recorder()
    cell = Cell("previews", show_previews, PreviewParams(fail_at=2))
    with pytest.raises(CellsFailedError):
        fan_out([cell], executor, store, recorder)
    assert recorder.about("artifact") == [("previews/1.txt", "step 1"), ("previews/2.txt", "step 2")]
    fan_out([cell], executor, store, Recorder())
    directory = store.path(cell.digest)
    assert [file.name for file in sorted((directory / "previews").iterdir())] == ["1.txt", "2.txt", "3.txt"]
    assert (directory / "commit.txt").read_text() == "0123abc"


def test_cells_that_measure_seconds_have_their_executor_to_themselves(store, executor):
    recorder = Recorder()
    fan_out(sums(3, seconds=0.05), executor, store, recorder, alone=True)
    fates = [words[:2] for words in recorder.said if words[0] in {"started", "finished"}]
    assert fates == [(fate, f"sum-{i}") for i in range(3) for fate in ("started", "finished")]


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{"num_cpus": 999}, {"num_gpus": 77}, {"memory_gb": 99999}])
def test_resources_that_no_node_has_are_an_error_before_anything_starts(store, joined, asked):
    recorder = Recorder()
    with pytest.raises(UserError, match="no Ray node can run a cell"):
        fan_out(sums(1), dataclasses.replace(joined, **asked), store, recorder, gpu=True)
    assert recorder.about("started") == []
