"""Whatever is killed in the middle of training, the next `dvc repro` goes on and ends with the same bytes."""

import math
import os
import signal

import pytest
from checkouts import BC_ON_TWO_SEEDS, Checkout, cleaned, progress
from waiting import PATIENCE_S, wait_until

from pipelines.engine.cells import step_of

pytestmark = pytest.mark.slow

AGENTS = 6
UPDATES = 600
SWEEP = (
    *BC_ON_TWO_SEEDS,
    "offline_rl.sweep.sparsities=[0,0.5,0.95]",
    # Evaluations fall between checkpoints, so that some are played twice after an interruption.
    f"offline_rl.training.bc.updates={UPDATES}",
    "offline_rl.training.bc.eval_every=40",
    "offline_rl.training.bc.checkpoint_every=50",
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A checkout with data, before any training."""
    checkout = Checkout.of_working_tree(tmp_path_factory.mktemp("prepared") / "clone")
    with cleaned(checkout):
        checkout.compose(*SWEEP, "executor=local")
        checkout.repro("data")
        yield checkout


@pytest.fixture(scope="module")
def undisturbed(prepared, tmp_path_factory):
    """The results of a run that nobody kills."""
    checkout = prepared.copy(tmp_path_factory.mktemp("undisturbed") / "clone")
    with cleaned(checkout):
        checkout.repro("agents")
        assert checkout.cells().keys() > prepared.cells().keys()
        yield checkout.results()


class Training:
    """A `dvc repro` in the middle of its training of agents."""

    def __init__(self, checkout: Checkout):
        self.checkout = checkout
        self.dvc = checkout.start("dvc", "repro", "agents")

        def in_the_middle():
            assert self.dvc.poll() is None, checkout.output
            # One agent is trained. Another has a checkpoint, and much left to do when its stage is to end.
            store = checkout.path / ".cells"
            trained = any(
                '"tasks.train_agents.train"' in each.read_text() for each in store.glob("*/cell.json")
            )
            saved = (store / "checkpoints").glob("*/[0-9]*")
            return trained and any(0 <= step_of(path.name) <= UPDATES / 2 for path in saved)

        wait_until(in_the_middle, "an agent is trained and another has a checkpoint", math.inf)


@pytest.fixture
def training(request, prepared, tmp_path):
    """On an executor, in a checkout of its own."""
    checkout = prepared.copy(tmp_path / "clone")
    with cleaned(checkout):
        checkout.compose(*SWEEP, f"executor={request.param}")
        yield Training(checkout)


@pytest.mark.parametrize(
    ("training", "disturb"),
    [("local", "kill driver"), ("ray", "kill dvc"), ("ray", "press Ctrl-C")],
    indirect=["training"],
)
def test_the_next_run_goes_on(training, disturb, undisturbed):
    checkout = training.checkout
    match disturb:
        case "kill driver":
            checkout.process("python -m pipelines agents").kill()
        case "kill dvc":
            training.dvc.kill()
        case _:
            os.killpg(training.dvc.pid, signal.SIGINT)
    training.dvc.wait(PATIENCE_S)
    wait_until(lambda: not checkout.processes(), f"no process is left: {checkout.processes()}")
    kept = checkout.cells()

    output = checkout.repro("agents")

    total, reused, missing = progress(output)["train"]
    assert total == AGENTS
    assert 1 <= reused < AGENTS
    assert missing == AGENTS - reused
    assert "from a checkpoint)" in output
    assert kept.items() <= checkout.cells().items()  # not one was made anew
    assert checkout.results() == undisturbed
    checkout.check_runs()
    assert not list((checkout.path / ".cells/checkpoints").iterdir())


@pytest.mark.parametrize("training", ["ray"], indirect=True)
def test_a_killed_worker_costs_the_run_nothing(training, undisturbed):
    checkout = training.checkout
    wait_until(lambda: checkout.process("ray::Hopper/bc"), "a worker trains").kill()
    assert training.dvc.wait() == 0, checkout.output
    assert "WorkerCrashedError; continuing from the last checkpoint" in checkout.output
    assert checkout.results() == undisturbed
    checkout.check_runs()
    wait_until(lambda: not checkout.processes(), "no process is left")


@pytest.mark.parametrize("training", ["local"], indirect=True)
def test_two_repros_at_once_spoil_nothing(training, undisturbed):
    """The second `dvc` is told who is at it, by DVC; a second driver waits."""
    checkout = training.checkout
    for stage in ("agents", "pictures"):
        told = checkout.run("dvc", "repro", stage, expect=255)
        assert f"is busy, it is being blocked by:\n  (PID {training.dvc.pid})" in told
    # As after a `dvc` that was killed, whose driver has not ended yet.
    second = checkout.start("python", "-m", "pipelines", "agents")
    told = "waiting for another process, which is working on the stage agents"
    wait_until(lambda: told in checkout.output, "the second driver is told")
    assert training.dvc.wait() == 0
    assert second.wait() == 0
    assert progress(checkout.output)["train"] == (AGENTS, AGENTS, 0)
    assert checkout.results() == undisturbed
    checkout.check_runs()
