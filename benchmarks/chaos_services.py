"""Services that a run depends on, in processes and on ports of our own, so that they can be killed and cut
off: MLflow's server, a Ray cluster of two nodes, proxies before MLflow and S3, and a small disk.
"""

import atexit
import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from ports import free_port
from waiting import wait_until

PAUSE_S = 6.0
"""Seconds for which something is cut off, stopped, full, or gone before it is started again."""
SPARE_BYTES = 500_000_000
"""Free bytes on a run's disk at first: several times what a run writes."""

STARTS = 10
RAYS_OWN = ("ray::IDLE", "ray::Dash", "ray::Runtime")
"""Beginnings of the names of Ray's own processes, which compute no cell."""


class Server:
    """A command that serves until it is ended, and its child processes."""

    def __init__(self, log: Path, ready: str, *command: str):
        self._log, self._ready, self._command = log, ready, command
        self._known: set[psutil.Process] = set()
        atexit.register(self.end)
        self.start()

    def start(self) -> None:
        """Start the command, and wait until its log says `ready`.

        Try several times: a raylet gives up if its agent isn't there within 15 s, as on a busy machine.
        """
        for _ in range(STARTS):
            with self._log.open("w") as log:
                self._process = subprocess.Popen(
                    self._command, stdout=log, stderr=log, start_new_session=True
                )
            wait_until(lambda: self.has_ended() or self._is_ready(), f"{self._log} is ready")
            if self._is_ready():
                return
            self.end()
        raise RuntimeError(f"{self._log} isn't ready:\n{self._log.read_text('utf-8')}")

    def _is_ready(self) -> bool:
        return self._ready in self._log.read_text("utf-8")

    def has_ended(self) -> bool:
        """Whether the command has ended."""
        return self._process.poll() is not None

    def processes(self) -> list[psutil.Process]:
        """The processes that are alive, even if their parent is not."""
        with contextlib.suppress(psutil.NoSuchProcess):
            main = psutil.Process(self._process.pid)
            self._known |= {main, *main.children(recursive=True)}
        return [process for process in self._known if _runs(process)]

    def find(self, name: str) -> psutil.Process | None:
        """A process of that name."""
        return next((process for process in self.processes() if process.name() == name), None)

    def end(self) -> None:
        """Kill all processes."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()


class Cluster:
    """A Ray cluster of two one-core nodes on this machine. The first node has the driver and the GCS."""

    def __init__(self, directory: Path):
        directory.mkdir()
        self.address = f"127.0.0.1:{free_port()}"
        size = ("--block", "--num-cpus=1", "--object-store-memory=150000000", "--node-ip-address=127.0.0.1")
        ray = str(Path(sys.executable).with_name("ray"))  # also where the environment isn't activated
        own = (ray, "start", *size, "--dashboard-agent-listen-port=0", "--disable-usage-stats")
        port = self.address.rpartition(":")[2]
        head = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={directory}")
        ready = "Ray runtime started"
        self.head = Server(directory / "head.log", ready, *own, *head)
        self.node = Server(directory / "node.log", ready, *own, f"--address={self.address}")

    def worker(self) -> psutil.Process | None:
        """A process that computes a cell."""
        for process in (*self.node.processes(), *self.head.processes()):
            with contextlib.suppress(psutil.NoSuchProcess):
                name = process.name()
                if name.startswith("ray::") and not name.startswith(RAYS_OWN):
                    return process
        return None

    def mend(self) -> None:
        """Restart what has ended: the second node, or both nodes if the head has ended."""
        # A GCS that was told to end may close its port and stay alive.
        if not (_answers(self.address) and self.head.find("raylet")):
            self.end()
            self.head.start()
            self.node.start()
        elif not self.node.find("raylet"):
            self.node.end()
            self.node.start()

    def end(self) -> None:
        """End both nodes."""
        self.node.end()
        self.head.end()


class Proxy:
    """A proxy that forwards a port of this machine to another, until it is cut."""

    def __init__(self, target: int):
        self._cut = False
        self._target = target
        self._open: set[socket.socket] = set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def drop(self) -> None:
        """Cut all connections, and refuse new ones for a while."""
        self._cut = True
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        time.sleep(PAUSE_S)
        self._cut = False

    def _accept(self) -> None:
        while True:
            client, _ = self._server.accept()
            try:
                if self._cut:
                    raise ConnectionRefusedError
                target = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            self._open |= {client, target}
            for pair in ((client, target), (target, client)):
                threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            self._open.discard(end)
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()


class Services:
    """MLflow and S3, each behind a proxy, and optionally Ray."""

    def __init__(self, directory: Path, s3_port: int, *, ray: bool):
        port = free_port()
        self.mlflow = Proxy(port)
        self.s3 = Proxy(s3_port)
        self.cluster = Cluster(directory / "ray") if ray else None
        self.mlflow_server = Server(
            directory / "mlflow.log",
            "Application startup complete",
            *(sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"),
            *("--backend-store-uri", f"sqlite:///{directory}/mlflow.db"),
            *("--artifacts-destination", f"{directory}/artifacts"),
        )

    def mend(self) -> None:
        """Restart the services that have ended."""
        if self.mlflow_server.has_ended():
            self.mlflow_server.end()
            self.mlflow_server.start()
        if self.cluster:
            self.cluster.mend()

    def close(self) -> None:
        """End all services."""
        self.mlflow_server.end()
        if self.cluster:
            self.cluster.end()


class Disk:
    """A disk in a file: an ext4 image, mounted at a directory, which needs root."""

    def __init__(self, directory: Path, size: int):
        self._directory, self._image = directory, directory.with_name(f"{directory.name}.ext4")
        self._kept = self._image.with_suffix(".kept")
        with self._image.open("wb") as image:
            image.truncate(size)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(self._image)], check=True)
        self._mount()

    def keep(self) -> None:
        """Copy what the disk has received so far. What the system has yet to write to it is not there."""
        subprocess.run(["cp", "--sparse=always", str(self._image), str(self._kept)], check=True)

    def go_back(self) -> None:
        """Put the copy in the disk's place, as after a power cut."""
        self.unmount()
        self._kept.replace(self._image)
        self._mount()

    def unmount(self) -> None:
        """Take the disk away."""
        subprocess.run(["umount", "--lazy", str(self._directory)], check=True)

    def remove(self) -> None:
        """Remove the disk and its files."""
        self.unmount()
        self._image.unlink()

    def _mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self._directory)], check=True)


@contextlib.contextmanager
def small_disk(directory: Path, used: int) -> Iterator[Disk]:
    """A disk at `directory`, with little more space than `used` bytes."""
    directory.mkdir()
    disk = Disk(directory, used + SPARE_BYTES)
    try:
        yield disk
    finally:
        disk.remove()


def fill(directory: Path) -> None:
    """Leave no byte free on a disk for a while."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    time.sleep(PAUSE_S)
    filler.unlink()


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=PAUSE_S):
        return True
    return False


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
