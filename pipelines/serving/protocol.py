"""HTTP/1.1 on one connection: uvicorn's protocol, with limits on what comes before and after a body."""

from asyncio import Transport

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD_BYTES = 2**16
"""Largest size of a request's address and headers together. Node.js and h11 accept 16 kB, nginx 32 kB."""


def _refusal(status: bytes, error: bytes) -> bytes:
    body = b'{"error":"%b"}' % error
    return (
        b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
        % (status, len(body), body)
    )


HEAD_TOO_LARGE = _refusal(
    b"431 Request Header Fields Too Large", b"the head of the request is larger than 64 kB"
)
NOT_HTTP = _refusal(b"400 Bad Request", b"the request is no HTTP/1.1, or has not one header Host")


class Protocol(HttpToolsProtocol):
    """Uvicorn's protocol, with limits on heads and trailers, and with answers to half-closed connections.

    Uvicorn's timeout for a connection without a request ends with the first byte of a request, and its parser
    accepts heads and trailers of any length.
    """

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Start the timeout within which a whole head has to arrive."""
        super().connection_made(transport)
        self._unparsed_bytes, self._refused, self._awaits_head = 0, False, True
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        self._awaits_head = False
        self._unset_keepalive_if_required()
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
        """Cancel the timeout; raise ValueError, which stops the parser, if the head is refused."""
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > LARGEST_HEAD_BYTES:
            self._refuse_head()
            raise ValueError("the head is too large")
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts < 1 and self.parser.get_http_version() == "1.1"):
            raise ValueError("HTTP/1.1 has one header Host (RFC 9112, section 3.2)")
        self._unparsed_bytes, self._awaits_head = 0, False
        self._unset_keepalive_if_required()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Start to count again, as trailers may follow."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Start the timeout again, unless the next request has arrived."""
        super().on_response_complete()
        self._awaits_head = not self._is_busy()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (it says less)
        """Answer a request that the parser rejects, unless a refusal has stopped the parser."""
        if not self._refused:
            self.transport.write(NOT_HTTP)
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection to answer what has arrived, whole or not, as no more will arrive."""
        if not self._is_busy():
            return False
        self.cycle.keep_alive = self.cycle.more_body = False
        self.cycle.message_event.set()
        return True

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _unset_keepalive_if_required(self) -> None:
        """Cancel the timeout, but not at the first byte of a head, as uvicorn does."""
        if not self._awaits_head:
            super()._unset_keepalive_if_required()

    def _refuse_head(self) -> None:
        self._refused = True
        if self._is_busy():  # an earlier request has to be answered first
            self.transport.close()
            return
        self.transport.write(HEAD_TOO_LARGE)
        # Not closed: data that still arrives would then cause a reset, which may overtake this answer.
        self.transport.write_eof()
