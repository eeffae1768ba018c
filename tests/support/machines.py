"""Other computers on this one: each with network, mounts, shared memory and processes of its own.

They are Linux namespaces on a bridge in a network of their own, so that nothing outside is seen or
changed, and nothing of them is left when their processes end.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

# Others than root are root in a user namespace, where the system lets them.
UNSHARE = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")))
NSENTER = ("nsenter", *(() if os.geteuid() == 0 else ("--user", "--preserve-credentials")))
BRIDGE = "ip link set lo up; ip link add bridge type bridge; ip link set bridge up"


def why_not() -> str | None:
    """Why there can be no machines here; None if there can."""
    missing = [tool for tool in ("unshare", "nsenter", "ip", "mount") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    command = [*UNSHARE, "--net", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-ec", BRIDGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"namespaces are not permitted: {done.stderr.strip()}" if done.returncode else None


class Machine:
    """One of the computers."""

    def __init__(self, process: subprocess.Popen, address: str):
        self.address = address
        self._process = process
        # `unshare` waits outside; its child is the machine's first process, with which all others end.
        self.pid = _settled(process, lambda: psutil.Process(process.pid).children()[0]).pid

    def command(self, *command: str, cwd: Path = Path("/")) -> tuple[str, ...]:
        """What runs `command` there, from here."""
        target = ("--target", str(self.pid), "--net", "--mount", "--pid", f"--wd={cwd}")
        return (*NSENTER, *target, "--", *command)

    def cut_power(self) -> None:
        """End it, and whatever runs there, with no chance to say so."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def machines(count: int, hidden: Sequence[Path]) -> Iterator[list[Machine]]:
    """Computers that reach each other by network alone.

    All have an empty `/dev/shm` and `/tmp/ray`; those after the first also find nothing in `hidden`.
    """
    Path("/tmp/ray").mkdir(exist_ok=True)
    with contextlib.ExitStack() as running:
        switch = _start(running, *UNSHARE, "--net", "sh", "-ec", f"{BRIDGE}; exec sleep infinity")
        _settled(switch, lambda: psutil.Process(switch.pid))
        found = []
        for number in range(1, count + 1):
            empty = [Path("/dev/shm"), Path("/tmp/ray"), *(hidden if number > 1 else ())]
            mounts = "; ".join(f"mount -t tmpfs none '{path}'" for path in empty)
            namespaces = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
            within = (*NSENTER, "--target", str(switch.pid), "--net")
            process = _start(
                running, *within, "unshare", *namespaces, "sh", "-ec", f"{mounts}; exec sleep infinity"
            )
            machine = Machine(process, f"10.77.0.{number}")
            _plug_in(switch, machine, number)
            found.append(machine)
        yield found


def _plug_in(switch: subprocess.Popen, machine: Machine, number: int) -> None:
    plug = (
        f"ip link add port{number} type veth peer name eth0 netns {machine.pid}; "
        f"ip link set port{number} master bridge up"
    )
    subprocess.run([*NSENTER, "--target", str(switch.pid), "--net", "sh", "-ec", plug], check=True)
    connect = f"ip addr add {machine.address}/24 dev eth0; ip link set eth0 up; ip link set lo up"
    subprocess.run(machine.command("sh", "-ec", connect), check=True)


def _start(running: contextlib.ExitStack, *command: str) -> subprocess.Popen:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    running.callback(process.wait)
    running.callback(process.kill)
    return process


def _settled(started: subprocess.Popen, find: Callable[[], psutil.Process]) -> psutil.Process:
    """The process that `find` finds, when it has done what its machine needs and sleeps."""
    while started.poll() is None:
        with contextlib.suppress(IndexError, psutil.Error):
            if (process := find()).name() == "sleep":
                return process
        time.sleep(0.01)
    raise AssertionError(f"{started.args} ended with {started.returncode}")
