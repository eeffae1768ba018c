"""Calls in a separate process, which is killed at a time limit and replaced after a crash.

`python -m singleshot.io.own_process FD` is that process. Until its first call, it imports the standard
library alone, so its interpreter may be that of a different environment.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from singleshot.errors import UserError, in_a_line

ROOT = Path(__file__).parents[2]
"""Directory of the package `singleshot`, which may not be installed."""


class ProcessFailed(Exception):  # noqa: N818 (an outcome that tables report)
    """A call raised an error, or crashed its process; the message is the reason, in one line."""


class TookTooLong(ProcessFailed):
    """A call wasn't answered within its time limit, and its process was killed."""


class OwnProcess:
    """A process that answers one call after another; a context manager that kills it at the end.

    The process starts with the first call, and anew with the call after a crash or a time limit. All
    processes that it starts are killed with it, and it ends with this process, whatever it is doing. It
    writes nothing to this process's output. One thread at a time may use it.
    """

    def __init__(self, python: str | Path = sys.executable, environment: Mapping[str, str] = os.environ):
        path = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
        self._environment = {**environment, "PYTHONPATH": path}
        self._python = str(python)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (it stays open)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._log.close()

    def call(self, time_limit_s: float, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of `function(*arguments)`, where `function` has a name in a module.

        Raises:
            UserError: the function raised one.
            TookTooLong: there is no result after `time_limit_s`; the start of the process counts, too.
            ProcessFailed: the function raised another error, or the process crashed.
        """
        if self._process is not None and self._process.poll() is not None:
            self.kill()  # somebody else has ended it
        if self._process is None:
            self._start()
        self._log.seek(0)  # for both processes, as they share the open file
        self._log.truncate()
        try:
            self._connection.send((function, arguments))
            if not self._connection.poll(time_limit_s):
                raise TookTooLong(f"no answer within {time_limit_s:g} s")
            error, result = self._connection.recv()
        except (EOFError, OSError) as ended:
            raise ProcessFailed(self._how_it_ended()) from ended
        except BaseException:
            self.kill()
            raise
        if error:
            raise error(result)
        return result

    def kill(self) -> None:
        """Kill the process, and all processes that it started. The next call starts it anew."""
        if self._process is not None:
            self._connection.close()
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [self._python, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=self._environment,
                start_new_session=True,
            )

    def _how_it_ended(self) -> str:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        status = self._process.returncode or 0
        self.kill()
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        written = os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0)
        lines = written.decode(errors="replace").strip().splitlines()
        return f"{how}: {lines[-1].strip()[:300]}" if lines else how


def main() -> None:
    """Answer calls until the other end of the connection closes, which ends a call, too."""
    connection = Connection(int(sys.argv[1]))
    calls: SimpleQueue[bytes] = SimpleQueue()

    def receive() -> None:
        with suppress(EOFError, OSError):
            while True:
                calls.put(connection.recv_bytes())
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=receive, daemon=True).start()
    while True:
        connection.send_bytes(_answer(calls.get()))


def _answer(call: bytes) -> bytes:
    """The error's type, or None, and the result or the error's message."""
    try:
        function, arguments = pickle.loads(call)
        return pickle.dumps((None, function(*arguments)))
    except UserError as error:
        return pickle.dumps((UserError, str(error)))
    except Exception as error:
        # Not its first line alone: that of OpenVINO's errors names only a source file.
        reason = textwrap.shorten(in_a_line(error), 200, placeholder=" …")
        return pickle.dumps((ProcessFailed, reason))


if __name__ == "__main__":
    from singleshot.io import own_process  # so that its errors aren't those of `__main__`

    own_process.main()
