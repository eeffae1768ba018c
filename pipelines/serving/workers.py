"""The application on this machine: processes that accept from one socket, each replaced if it dies."""

import contextlib
import functools
import math
import signal
import socket
import sys
import threading
import time
from asyncio import Transport
from collections.abc import Iterator, Sequence

from fastapi import FastAPI
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from pipelines.config.serving import ServingConfig
from pipelines.engine.lifecycle import GRACE_SECONDS, takes_its_children_along
from pipelines.serving.app import build_app
from pipelines.serving.models import Model
from singleshot.errors import UserError

HANGS_AFTER_S = 60
"""Time after which a process whose Python code does not respond is taken for dead."""
LARGEST_HEAD_BYTES = 2**16
"""Largest size of a request's address and headers together. Node.js and h11 accept 16 kB, nginx 32 kB."""
_TOO_LARGE = b'{"error":"the head of the request is larger than 64 kB"}'
HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_TOO_LARGE), _TOO_LARGE)
)


@contextlib.contextmanager
def workers(models: Sequence[Model], config: ServingConfig) -> Iterator[None]:
    """Serve models on this machine within the context, which begins when every process answers.

    Raises:
        UserError: the port is in use, or a process ends while it starts.
    """
    with _listener(config) as listener, takes_its_children_along():
        supervisor = _Supervisor(
            Config(
                functools.partial(_application, models, config),
                factory=True,
                workers=config.workers,
                http=_Protocol,
                ws="websockets-sansio",
                ws_max_size=1000,
                lifespan="off",
                log_level="error",  # clients cause the messages below this level
                access_log=False,
                timeout_keep_alive=math.ceil(config.timeout_s),
                timeout_graceful_shutdown=int(GRACE_SECONDS),
            ),
            [listener],
        )
        thread = threading.Thread(target=supervisor.run, daemon=True)
        thread.start()
        try:
            supervisor.started.wait()
            if not supervisor.ready:
                raise UserError("a process of the server ended as it started; the reason is above")
            yield
        finally:
            supervisor.should_exit.set()
            thread.join(2 * GRACE_SECONDS)


def _application(models: Sequence[Model], config: ServingConfig) -> FastAPI:
    """The application of a process. A user's mistake ends the process with one line."""
    try:
        return build_app(models, config)
    except UserError as error:
        sys.exit(f"error: {error}")


class _Supervisor(Multiprocess):
    """Uvicorn's supervisor, run in a thread, which leaves signals to the program."""

    def __init__(self, config: Config, sockets: list[socket.socket]) -> None:
        self.config, self.sockets = config, sockets
        self.processes_num, self.processes = config.workers, []
        self.should_exit, self.signal_queue = threading.Event(), []
        self.started, self.ready = threading.Event(), False
        self._asked: dict[Process, float] = {}
        """Times at which processes were sent a ping that they have not answered yet."""

    def init_processes(self) -> None:
        # The processes inherit this: a terminal's Ctrl-C is only for this process, which ends the others.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        super().init_processes()
        self.ready = all(each.wait_until_ready(math.inf, self.should_exit) for each in self.processes)
        self.started.set()

    def keep_subprocess_alive(self) -> None:
        """Replace processes that have ended or hang. Uvicorn's method would wait for one that is starting."""
        for i, process in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            if process.process.is_alive() and self._answers(process):
                continue
            process.kill()
            process.join()
            ended = f"a process of the server ended with status {process.exitcode}"
            print(f"{ended}; another takes its place", file=sys.stderr)
            self._asked.pop(process, None)
            self.processes[i] = Process(self.config, self.sockets)
            self.processes[i].start()

    def _answers(self, process: Process) -> bool:
        """Whether a process has answered the last ping within `HANGS_AFTER_S`, or still may; never waits."""
        now = time.monotonic()
        try:
            if process not in self._asked:
                self._asked[process] = now
                process.parent_conn.send(b"ping")
            elif process.parent_conn.poll():
                process.parent_conn.recv()
                del self._asked[process]
        except (OSError, EOFError):
            return False
        return now - self._asked.get(process, now) < HANGS_AFTER_S


class _Protocol(HttpToolsProtocol):
    """Uvicorn's protocol, with limits on heads and trailers, and with answers to half-closed connections.

    Uvicorn's timeout for a connection without a request ends with the first byte of a request, and its parser
    accepts heads and trailers of any length.
    """

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Start the timeout within which a whole head has to arrive."""
        super().connection_made(transport)
        self._unparsed_bytes, self._refused = 0, False
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        self._head_due.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data. After a head was refused, drop all data until the timeout."""
        if self._refused:
            return
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > LARGEST_HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """Start to count a head's bytes, from its second piece on."""
        super().on_message_begin()
        self._unparsed_bytes = 0

    def on_headers_complete(self) -> None:
        """Cancel the timeout; raise ValueError, which stops the parser, if the head is too large."""
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > LARGEST_HEAD_BYTES:
            self._refuse_head()
            raise ValueError("the head is too large")
        self._unparsed_bytes = 0
        self._head_due.cancel()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Start to count again, as trailers may follow."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Start the timeout again, unless the next request has arrived."""
        super().on_response_complete()
        if not self._is_busy():
            self._head_due.cancel()
            self._await_head()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that the parser rejects, unless a refusal has stopped the parser."""
        if not self._refused:
            super().send_400_response(msg)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection to answer what has arrived, whole or not, as no more will arrive."""
        if not self._is_busy():
            return False
        self.cycle.keep_alive = self.cycle.more_body = False
        self.cycle.message_event.set()
        return True

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._head_due = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _refuse_head(self) -> None:
        self._refused = True
        if self._is_busy():  # an earlier request has to be answered first
            self.transport.close()
            return
        self.transport.write(HEAD_TOO_LARGE)
        # Not closed: data that still arrives would then cause a reset, which may overtake this answer.
        self.transport.write_eof()


@contextlib.contextmanager
def _listener(config: ServingConfig) -> Iterator[socket.socket]:
    """A socket whose connections end when a client takes no byte of an answer for `timeout_s`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that can't be one, such as `a..b`
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{config.host}: {reason}; give another --host") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(1000 * config.timeout_s))
        try:
            listener.bind(address)
        except OSError as error:
            name = f"{config.host}:{config.port}"
            raise UserError(f"{name}: {error.strerror}; give another --host or --port") from error
        yield listener
