"""Other computers on this one: each with network, mounts, shared memory and processes of its own.

They are Linux namespaces on a bridge in a network of their own, so that nothing outside is seen or
changed, and nothing of them is left when their processes end.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
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


class Network:
    """Machines that reach each other by network alone."""

    def __init__(self, running: contextlib.ExitStack):
        self._running = running
        self._switch = self._start(*UNSHARE, "--net", "sh", "-ec", f"{BRIDGE}; exec sleep infinity")
        _settled(self._switch, lambda: psutil.Process(self._switch.pid))
        self._inside = (*NSENTER, "--target", str(self._switch.pid), "--net")
        self._machines = 0

    def add(self, *hidden: Path) -> Machine:
        """A machine that has nothing in the directories `hidden`, nor in `/dev/shm` and `/tmp/ray`."""
        Path("/tmp/ray").mkdir(exist_ok=True)
        mounts = "; ".join(f"mount -t tmpfs none '{path}'" for path in ("/dev/shm", "/tmp/ray", *hidden))
        namespaces = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        setup = ("sh", "-ec", f"{mounts}; exec sleep infinity")
        process = self._start(*self._inside, "unshare", *namespaces, *setup)
        self._machines += 1
        machine = Machine(process, f"10.77.0.{self._machines}")
        plug = (
            f"ip link add port{self._machines} type veth peer name eth0 netns {machine.pid}; "
            f"ip link set port{self._machines} master bridge up"
        )
        subprocess.run([*self._inside, "sh", "-ec", plug], check=True)
        connect = f"ip addr add {machine.address}/24 dev eth0; ip link set eth0 up; ip link set lo up"
        subprocess.run(machine.command("sh", "-ec", connect), check=True)
        return machine

    def _start(self, *command: str) -> subprocess.Popen:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self._running.callback(process.wait)
        self._running.callback(process.kill)
        return process


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network, without machines as yet; they end with it."""
    with contextlib.ExitStack() as running:
        yield Network(running)


def _settled(started: subprocess.Popen, find: Callable[[], psutil.Process]) -> psutil.Process:
    """The process that `find` finds, when it has done what its machine needs and sleeps."""
    while started.poll() is None:
        with contextlib.suppress(IndexError, psutil.Error):
            if (process := find()).name() == "sleep":
                return process
        time.sleep(0.01)
    raise AssertionError(f"{started.args} ended with {started.returncode}")
