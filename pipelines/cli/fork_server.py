"""Stages of a `dvc repro` as forks of one process, which has imported the libraries that stages share.

Most of the time in which a stage opens is that of importing PyTorch, MLflow and pandas. So the first stage
starts a fork server, `python -m pipelines.cli.fork_server PID SOCKET FILE`: a process that imports them once,
and ends as soon as the `dvc` with this process id has ended. For each later stage it forks a process that
does the work. The process that `dvc` started for the stage hands over its arguments, environment and standard
streams, passes on signals, and ends as the fork ends.

The fork imports the modules of this repository itself: each stage runs the code whose hash DVC records.
"""

import contextlib
import gc
import hashlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from pipelines.engine import installed
from pipelines.engine.import_settings import set_variables
from pipelines.engine.lifecycle import act_for, dvc_above, name_of
from pipelines.engine.turns import DVC

LIBRARIES = ("torch", "pandas", "mlflow.store.tracking.sqlalchemy_store", "ray", "typer")
"""Libraries that the server imports. None of them starts a thread of Python's, which a fork would lack."""
LOG = DVC / "fork_server.log"
STREAMS = (0, 1, 2)


def run_as_fork() -> None:
    """Run this process' command as a fork of the server of its `dvc`, and exit with the fork's status.

    Returns if this process is no stage of a `dvc`, or if there is no server: the next stage has one.
    """
    dvc = dvc_above()
    if dvc is None:
        return
    # After an installation, stages have a new server. A short name, as a socket's path has at most 107 bytes.
    name = hashlib.sha256(f"{name_of(dvc)} {installed.digest()}".encode()).hexdigest()[:16]
    address = DVC / f"fork-{name}.sock"
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(str(address))
        except (FileNotFoundError, ConnectionRefusedError):
            _start(dvc, address)
        else:
            status = _hand_over(server)
            if status is not None:
                sys.exit(status)


def _start(dvc: psutil.Process, address: Path) -> None:
    address.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener, LOG.open("w") as log:
        # The server inherits a socket that listens: a stage that comes while it starts waits for it.
        listener.bind(str(address))
        listener.listen()
        arguments = f"{dvc.pid}", str(address), f"{listener.fileno()}"
        subprocess.Popen(
            [sys.executable, "-m", "pipelines.cli.fork_server", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[listener.fileno()],
            # Ctrl-C reaches only the process that passes it on to the fork.
            start_new_session=True,
        )


def _hand_over(server: socket.socket) -> int | None:
    """Have `server` fork a process that does what this one was started for.

    Returns:
        The fork's exit status; None if the server ended before it forked.
    """
    task = {
        "process": os.getpid(),
        "arguments": sys.argv,
        "directory": str(Path.cwd()),
        "environment": dict(os.environ),
    }
    with server.makefile() as answers:
        try:
            socket.send_fds(server, [b"\n"], STREAMS)
            server.sendall(json.dumps(task).encode())
            server.shutdown(socket.SHUT_WR)
            fork = answers.readline()
        except ConnectionError:
            return None
        if not fork:
            return None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(int(fork), number))
        status = answers.readline()
    if not status:
        sys.exit("error: the fork server has ended, and this stage with it; finished cells are kept")
    return int(status)


def _serve(dvc: psutil.Process, listener: socket.socket) -> bool:
    """Fork a process for each stage, one after the other, until `dvc` has ended; returns True in a fork."""
    listener.settimeout(0.5)
    while dvc.is_running():
        with contextlib.suppress(TimeoutError, BrokenPipeError), listener.accept()[0] as stage:
            stage.settimeout(None)
            _, streams, _, _ = socket.recv_fds(stage, 1, len(STREAMS))
            with stage.makefile() as told:
                task = told.read()
            fork = os.fork()
            if not fork:
                _become(json.loads(task), streams)
                return True
            for stream in streams:
                os.close(stream)
            stage.sendall(f"{fork}\n".encode())
            status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
            stage.sendall(f"{status if status >= 0 else 128 - status}\n".encode())
    return False


def _become(task: dict[str, Any], streams: list[int]) -> None:
    """Make this process what the one was started for that handed over `task` and its standard streams."""
    for stream, number in zip(streams, STREAMS, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # type: ignore[union-attr]
    sys.argv = task["arguments"]
    os.chdir(task["directory"])
    os.environ.clear()
    os.environ.update(task["environment"])
    act_for(task["process"])


def main() -> None:
    """Import the libraries, then serve."""
    dvc, address, file = psutil.Process(int(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
    gc.disable()  # as in a stage
    set_variables()
    with socket.socket(fileno=file) as listener:
        for library in LIBRARIES:
            importlib.import_module(library)
        installed.distributions()
        gc.freeze()
        is_fork = _serve(dvc, listener)
    if is_fork:
        from pipelines.cli.app import main as run_command

        run_command()
    else:
        address.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
