"""Stages of a `dvc repro` as forks: real processes."""

import psutil
import pytest
from stages import ROOT, helper_of, run_stage, start_stage, started_dvc, until
from waiting import PATIENCE_S, wait_until

from pipelines.engine import installed
from pipelines.engine.turns import alone

STAGE = """
from pipelines.cli.fork_server import run_as_fork
run_as_fork()
print("not a fork", flush=True)
"""


@pytest.fixture
def dvc(tmp_path):
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    with started_dvc(tmp_path, STAGE) as process:
        yield process


def server_of(dvc):
    return helper_of(dvc, "pipelines.cli.fork_server")


def waiting_stage(dvc):
    """A stage that waits for its lock: the process that `dvc` started, and the fork."""
    start_stage(dvc, "evaluate")
    assert "waiting for process" in until(dvc, "waiting")
    (fork,) = server_of(dvc).children()
    (stage,) = [child for child in psutil.Process(dvc.pid).children() if "evaluate" in child.cmdline()]
    return stage, fork


def test_stages_after_the_first_are_forks_until_dvc_ends(dvc, tmp_path):
    assert run_stage(dvc) == "not a fork\nstatus 0\n"
    output = run_stage(dvc, "params", "--help")
    assert "Compose conf/ to params.yaml" in output
    assert output.endswith("status 0\n")
    output = run_stage(dvc, "evaluate", "--nonsense")
    assert "No such option: --nonsense" in output
    assert output.endswith("status 2\n")
    server = server_of(dvc)
    assert len(list(tmp_path.glob(".dvc/tmp/fork-*.sock"))) == 1
    dvc.kill()
    dvc.wait()
    assert not psutil.wait_procs([server], timeout=PATIENCE_S)[1]
    assert {path.name for path in tmp_path.glob(".dvc/tmp/*")} == {"fork_server.log", "in_use.lock"}


def test_a_fork_ends_with_the_process_that_it_acts_for(dvc, tmp_path):
    run_stage(dvc)
    with alone(tmp_path / ".dvc/tmp/evaluate.lock", "the test"):
        stage, fork = waiting_stage(dvc)
        stage.terminate()  # passed on
        assert until(dvc, "status").endswith("status 130\n")
        assert not psutil.wait_procs([fork], timeout=PATIENCE_S)[1]
        stage, fork = waiting_stage(dvc)
        stage.kill()  # noticed
        assert until(dvc, "status").endswith("status -9\n")
        assert not psutil.wait_procs([fork], timeout=PATIENCE_S)[1]
        stage, fork = waiting_stage(dvc)
        dvc.kill()
        dvc.wait()
        assert not psutil.wait_procs([stage, fork], timeout=PATIENCE_S)[1]


def test_a_fork_that_is_killed_fails_its_stage_alone(dvc, tmp_path):
    run_stage(dvc)
    with alone(tmp_path / ".dvc/tmp/evaluate.lock", "the test"):
        _, fork = waiting_stage(dvc)
        fork.kill()
        assert until(dvc, "status").endswith("status 137\n")
        stage, fork = waiting_stage(dvc)
        server_of(dvc).kill()
        assert "error: the fork server has ended" in until(dvc, "status")
        assert not psutil.wait_procs([stage, fork], timeout=PATIENCE_S)[1]
    assert run_stage(dvc).endswith("not a fork\nstatus 0\n")


def test_a_stage_whose_server_ends_before_the_fork_runs_without_it(dvc):
    run_stage(dvc)
    server = server_of(dvc)
    server.suspend()
    start_stage(dvc)
    (stage,) = wait_until(psutil.Process(dvc.pid).children, "the stage has started")
    wait_until(lambda: stage.net_connections("unix"), "the stage waits for the server's answer")
    server.kill()
    assert until(dvc, "status") == "not a fork\nstatus 0\n"


def test_an_installation_changes_the_digest(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_path", lambda name: {"purelib": str(tmp_path)}[name])
    (tmp_path / "torch-2.13.0.dist-info").mkdir()
    before = installed.digest()
    assert installed.digest() == before
    (tmp_path / "torch-2.13.0.dist-info").rename(tmp_path / "torch-2.14.0.dist-info")
    assert installed.digest() != before
