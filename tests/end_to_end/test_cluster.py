"""A sweep on machines that share no disk: what they compute, and what it costs to lose one of them."""

import math
import os
import subprocess
import sys

import pytest
from checkouts import BC_ON_TWO_SEEDS, BIN, ROOT, Checkout, cleaned, progress
from machines import Machine, Network, network, why_not
from object_store import BUCKET
from waiting import wait_until

from pipelines.engine.cells import step_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_not() is not None, reason=why_not() or "")]

SWEEP = (
    *BC_ON_TWO_SEEDS,
    "offline_rl.sweep.sparsities=[0,0.95]",
    "offline_rl.training.bc.updates=400",
    "offline_rl.training.bc.eval_every=200",
    "offline_rl.training.bc.checkpoint_every=50",
)
CELLS = {"prepare_data": 2, "prune": 2, "train": 4}  # a draw of the data for each seed
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
S3_PORT = "5001"


class Cluster:
    """Ray on machines of a network; the first holds it together, runs no cells and has the S3 server."""

    def __init__(self, net: Network, directory):
        self._net = net
        self._directory = directory
        # Not the driver's checkout, nor the one that these tests are from: code has to travel.
        self.hidden = (directory, ROOT / "tasks", ROOT / "pipelines")
        self.head = net.add(*self.hidden)
        self._ray(self.head, "--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false")
        self.environment = {"RAY_ADDRESS": f"{self.head.address}:6379", **TOKEN}

    def worker(self) -> Machine:
        """Add a machine that runs a cell at a time, and sees nothing of what its driver has."""
        machine = self._net.add(*self.hidden)
        self._ray(machine, f"--address={self.head.address}:6379", "--num-cpus=1")
        return machine

    def driver(self) -> Machine:
        """Add a machine that checkouts are on."""
        machine = self._net.add()
        self._ray(machine, f"--address={self.head.address}:6379", "--num-cpus=0")
        return machine

    def s3(self) -> dict[str, str]:
        """Start a server on the first machine; the environment that leads there."""
        server = (sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", S3_PORT)
        log = self._start(self.head, "s3", *server)
        wait_until(lambda: "Running on" in log.read_text(), f"S3 runs: {log}")
        environment = {
            "AWS_ENDPOINT_URL": f"http://{self.head.address}:{S3_PORT}",
            "AWS_ACCESS_KEY_ID": "a-key",
            "AWS_SECRET_ACCESS_KEY": "a-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        make = f"import boto3; boto3.client('s3').create_bucket(Bucket='{BUCKET}')"
        subprocess.run(
            self.head.command(sys.executable, "-c", make), env={**os.environ, **environment}, check=True
        )
        return {**environment, "SINGLESHOT_CELLS": f"s3://{BUCKET}/cells"}

    def _ray(self, machine: Machine, *options: str) -> None:
        own = (f"--node-ip-address={machine.address}", "--object-store-memory=100000000")
        log = self._start(machine, "ray", str(BIN / "ray"), "start", "--block", *own, *options)
        wait_until(lambda: "Ray runtime started" in log.read_text(), f"Ray runs: {log}")

    def _start(self, machine: Machine, what: str, *command: str):
        log = self._directory / f"{what}-{machine.address}.log"
        foreign = ("RAY_", "PYTHONPATH")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        with log.open("w") as file:
            subprocess.Popen(
                machine.command(*command),
                env={**kept, **TOKEN, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        return log


class Sweep:
    """`dvc repro agents` on a machine."""

    def __init__(self, checkout: Checkout, machine: Machine, **environment: str):
        self.checkout = checkout
        checkout.compose(*SWEEP, "executor=ray")
        command = machine.command("dvc", "repro", "agents", cwd=checkout.path)
        self._process = checkout.start(*command, **environment)

    def in_the_middle(self) -> None:
        """Wait until some agents are trained and others have checkpoints."""

        def half_way() -> bool:
            assert self._process.poll() is None, self.checkout.output
            finished = self.checkout.cells()
            checkpoints = (self.checkout.path / ".cells/checkpoints").glob("*/[0-9]*")
            # A bucket has everything that came before an unfinished agent's second checkpoint.
            going_on = any(
                step_of(file.name) >= 100 and file.parent.name not in finished for file in checkpoints
            )
            return going_on and len(finished) > CELLS["prepare_data"] + CELLS["prune"]

        wait_until(half_way, "an agent is trained and another has a second checkpoint", math.inf)

    def to_its_end(self) -> str:
        assert self._process.wait() == 0, self.checkout.output
        return self.checkout.output


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def local(directory):
    """A run in one process of one machine."""
    checkout = Checkout.of_working_tree(directory / "local")
    with cleaned(checkout):
        checkout.compose(*SWEEP, "executor=local")
        checkout.repro("agents")
        yield checkout


@pytest.fixture(scope="module")
def cluster(directory):
    """With one worker, which every test leaves as it is."""
    with network() as net:
        cluster = Cluster(net, directory)
        cluster.worker()
        yield cluster


def test_a_sweep_outlives_a_worker(local, cluster, directory):
    second = cluster.worker()
    checkout = local.clone(directory / "outlives-a-worker")
    with cleaned(checkout):
        sweep = Sweep(checkout, cluster.driver(), **cluster.environment)
        sweep.in_the_middle()
        second.cut_power()
        assert "NodeDiedError; continuing from the last checkpoint" in sweep.to_its_end()
        assert checkout.results() == local.results()
        assert checkout.cells().keys() == local.cells().keys()


def test_another_machine_goes_on_for_a_driver_that_is_lost(local, cluster, directory):
    """All that is left of the first driver is in the bucket."""
    environment = {**cluster.environment, **cluster.s3()}
    first, second = (local.clone(directory / name) for name in ("lost", "found"))
    with cleaned(first), cleaned(second):
        machine = cluster.driver()
        lost = Sweep(first, machine, **environment)
        lost.in_the_middle()
        machine.cut_power()

        output = Sweep(second, cluster.driver(), **environment).to_its_end()

        stages = progress(output)
        for stage in ("prepare_data", "prune"):
            assert stages[stage] == (CELLS[stage], CELLS[stage], 0)
        total, reused, missing = stages["train"]
        assert total == reused + missing == CELLS["train"]
        assert reused >= 1
        assert "from a checkpoint)" in output
        assert second.results() == local.results()
