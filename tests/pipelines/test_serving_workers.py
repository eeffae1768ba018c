"""The server's processes, and connections to one of them, byte by byte.

The application says how long a body was.
"""

import asyncio
import dataclasses
from contextlib import suppress

import pytest
from serving_clients import serving_config
from small_graphs import write_bc
from uvicorn import Config
from uvicorn.server import ServerState
from waiting import PATIENCE_S

from pipelines.serving.models import find_models
from pipelines.serving.protocol import LARGEST_HEAD_BYTES, Protocol
from pipelines.serving.workers import _listener, workers
from singleshot.errors import UserError

SOON_S = 0.3
HEAD = b"POST /act HTTP/1.1\r\nHost: x\r\n"
LINE = b"X-A: " + b"a" * 995 + b"\r\n"
TOO_MANY = LARGEST_HEAD_BYTES // 1000 + 1


async def body_length(_, receive, send):
    length, more = 0, True
    while more:
        message = await receive()
        length, more = length + len(message.get("body", b"")), message.get("more_body", False)
    answer = str(length).encode()
    headers = [(b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def received(*pieces, patience_s=SOON_S):
    """All that a client gets before the server's side ends, who sends so and leaves its own open."""

    async def send(writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.001)  # so that pieces come one by one

    async def client():
        config = Config(body_length, http=Protocol, ws="none", timeout_keep_alive=patience_s)
        config.load()
        state, loop = ServerState(), asyncio.get_running_loop()
        server = await loop.create_server(lambda: Protocol(config, state, {}), "127.0.0.1")
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            sending = asyncio.create_task(send(writer))
            answer = b""
            with suppress(ConnectionResetError):  # where it is closed before all has been read
                answer = await reader.read()
            sending.cancel()
            writer.close()
            return answer

    return asyncio.run(client())


def whole(body=b"", more=b"Connection: close\r\n"):
    return HEAD + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b"])
def test_a_host_that_cannot_be_listened_on_is_a_line(host):
    config = dataclasses.replace(serving_config(), host=host)
    with pytest.raises(UserError, match=rf"^{host}: .*; give another --host$"), _listener(config):
        pass


@pytest.mark.parametrize(
    "pieces",
    [[], [b"\r\n"], [HEAD], [HEAD, b"X-A"], [HEAD, *[b"X"] * 50]],
    ids=["nothing", "blank", "lines", "half a line", "slowly"],
)
def test_a_connection_over_which_no_whole_head_comes_is_closed(pieces):
    assert received(*pieces) == b""


@pytest.mark.parametrize("more", [[], [b"\r\n"] * 100, [b"POST /", *[b"a"] * 100]])
def test_so_is_one_after_an_answer(more):
    answer = received(whole(more=b""), *more)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\n0")


def test_a_head_may_come_in_pieces_and_a_body_is_no_head():
    body = b"b" * 3 * LARGEST_HEAD_BYTES
    request = whole(body)
    pieces = [request[:5], request[5:40], *(request[i : i + 9000] for i in range(40, len(request), 9000))]
    assert received(*pieces, patience_s=PATIENCE_S).endswith(str(len(body)).encode())
    assert received(request, patience_s=PATIENCE_S).endswith(str(len(body)).encode())


@pytest.mark.parametrize(
    "pieces",
    [
        [HEAD + LINE * TOO_MANY + b"\r\n"],
        [HEAD, *[LINE] * TOO_MANY, b"\r\n"],
        [HEAD, *[LINE] * 5 * TOO_MANY],
        [HEAD, *[LINE[:-2]] * 5 * TOO_MANY],
        [b"POST /", *[b"a" * 1000] * 5 * TOO_MANY],
        [b"\r\n" * 500] * 5 * TOO_MANY,
        [whole(more=b"")[:-2] + LINE * TOO_MANY + b"\r\n"],
    ],
    ids=["at once", "in pieces", "endless", "one line", "address", "blank", "with a length"],
)
def test_a_head_that_is_too_large_is_431(pieces):
    head, _, body = received(*pieces, patience_s=PATIENCE_S).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert body == b'{"error":"the head of the request is larger than 64 kB"}'


@pytest.mark.parametrize(
    "request_",
    [
        b"no request\r\n\r\n",
        b"FETCH / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ],
    ids=["no HTTP", "method", "no host", "two hosts"],
)
def test_what_is_no_http_is_refused_in_json(request_):
    head, _, body = received(request_, patience_s=PATIENCE_S).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert body == b'{"error":"the request is no HTTP/1.1, or has not one header Host"}'


def test_http_1_0_needs_no_host():
    assert received(b"GET / HTTP/1.0\r\n\r\n", patience_s=PATIENCE_S).startswith(b"HTTP/1.1 200")


def test_a_head_just_small_enough_is_answered():
    request = whole(more=LINE * (TOO_MANY - 2) + b"Connection: close\r\n")
    assert received(request, patience_s=PATIENCE_S).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "pieces",
    [
        [b"0\r\n", *[LINE] * 5 * TOO_MANY],
        [b"0\r\n", *[LINE[:-2]] * 5 * TOO_MANY],
        [b"1;" + b"a" * 1000, *[b"a" * 1000] * 5 * TOO_MANY],
    ],
    ids=["trailers", "one trailer", "extension"],
)
def test_what_follows_a_body_without_end_ends_the_connection(pieces):
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nb\r\n"
    assert received(head, *pieces, patience_s=PATIENCE_S) == b""


def test_a_process_that_cannot_start_ends_the_server(tmp_path, capfd):
    write_bc(tmp_path / "bc.onnx")
    models = find_models(tmp_path)
    (tmp_path / "bc.onnx").unlink()
    with pytest.raises(UserError, match="ended as it started"), workers(models, serving_config()):
        pass
    assert f"error: {tmp_path}/bc.onnx: no such file" in capfd.readouterr().err
