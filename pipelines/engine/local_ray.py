"""Ray on this machine: started for one process, or once for all stages of a `dvc repro`.

Ray takes six seconds to start and more than one to end. So the first stage that needs it starts a host,
`python -m pipelines.engine.local_ray PID FILE`: a process that starts Ray and ends it as soon as the `dvc`
with this process id has ended. Later stages of that `dvc` join.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from pipelines.engine.disks import check_space
from pipelines.engine.lifecycle import ends_with, is_alive, name_of, takes_its_children_along, this_process
from pipelines.engine.turns import DVC

HOST_LOG = DVC / "ray.log"
STARTS = 5
"""Number of attempts to start Ray on this machine. Ray gives up after 30 s, but a busy machine may need more
time."""
STARTUP_TIMEOUTS = ("timed out during startup", "Timed out waiting for file")
"""Parts of the messages of the exceptions that Ray raises when it gives up: a bare one for a node, and a
RuntimeError for the head's port."""
NO_HEALTH_CHECKS = {"health_check_failure_threshold": 2**31 - 1}
"""Options that turn Ray's health checks off. On one machine, a node that does not answer is only busy: with
60 processes on 2 cores, Ray took it for dead after five checks. Closed connections show that a node has
ended."""


def join(**options: Any) -> None:
    """`ray.init`, but keep the handler of SIGTERM: Ray's would exit before a stage has ended its runs."""
    import ray

    on_sigterm = signal.getsignal(signal.SIGTERM)
    ray.init(logging_level=logging.WARNING, **options)
    signal.signal(signal.SIGTERM, on_sigterm)


def took_too_long(error: Exception) -> bool:
    """Whether Ray gave up starting because it took too long."""
    return any(message in str(error) for message in STARTUP_TIMEOUTS)


@contextlib.contextmanager
def started_here() -> Iterator[None]:
    """Ray on this machine, joined by this process; Ray's processes end with this one.

    Raises:
        RuntimeError: it did not start.
        DiskFullError: there is no space for its logs.
    """
    import ray

    check_space(Path(os.environ.get("RAY_TMPDIR", "/tmp")))
    for _ in range(STARTS):
        with takes_its_children_along():
            try:
                # Without `local`, Ray joins any cluster that it finds here, even one that is ending.
                # A copy, as Ray adds to it, and would warn of its own additions the next time.
                join(address="local", include_dashboard=False, _system_config=dict(NO_HEALTH_CHECKS))
            except Exception as error:
                if not took_too_long(error):
                    raise
                print("Ray did not start within its 30 seconds: starting it again", file=sys.stderr)
                continue
            try:
                yield
            finally:
                ray.shutdown()
            return
    raise RuntimeError(f"not started within 30 seconds, {STARTS} times; this machine is too busy")


def shared_ray(dvc: psutil.Process) -> str:
    """The address of the Ray that all stages of `dvc` share, which is started if it isn't running.

    Raises:
        RuntimeError: it did not start.
    """
    file = DVC / f"ray-{name_of(dvc).replace(':', '-')}.json"
    with contextlib.suppress(FileNotFoundError):
        running = json.loads(file.read_text())
        if is_alive(running["host"]):
            return str(running["address"])
    command = [sys.executable, "-m", "pipelines.engine.local_ray", str(dvc.pid), str(file)]
    with HOST_LOG.open("w") as log:
        # In a session of its own, so that Ctrl-C ends the stage alone, and Ray when `dvc` has ended.
        host = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    assert host.stdout is not None
    with host.stdout as told:
        address = told.readline().strip()
    if not address:
        raise RuntimeError(f"its host ended while it started; {HOST_LOG} says why")
    return address


def _host(dvc: psutil.Process, file: Path) -> None:
    """Start Ray, write to `file` where it is, and keep it until `dvc` ends."""
    import ray

    with contextlib.suppress(KeyboardInterrupt), ends_with([dvc]), started_here():
        address = ray.get_runtime_context().gcs_address
        file.write_text(json.dumps({"host": this_process(), "address": address}))
        print(address, flush=True)
        while True:
            signal.pause()
    file.unlink(missing_ok=True)


if __name__ == "__main__":
    _host(psutil.Process(int(sys.argv[1])), Path(sys.argv[2]))
