"""Two hundred clients at once, bad ones among them, of the command as users run it; a process that dies."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import requests
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from serving_clients import act, asking_on, photo, refused, serving_config, stylize
from small_graphs import STATE, bc_action, write_all
from waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow
CLIENTS = 200
GROWTH_BYTES = 150e6
"""That a process may keep: buffers of its libraries, and what the allocator doesn't give back."""
PROGRAM = """
from pathlib import Path
from pipelines.config.serving import PicturesConfig, ServingConfig, StatesConfig
from pipelines.engine.execution import ExecutorConfig
from pipelines.serving.server import serve_forever

if __name__ == "__main__":
    serve_forever({config!r}, ExecutorConfig(), Path({directory!r}))
"""


@contextmanager
def serving(directory, **changes):
    """The address, the process, and the file of its standard error."""
    write_all(directory / "onnx")
    config = serving_config(**changes)
    program = directory / "program.py"
    program.write_text(PROGRAM.format(config=config, directory=str(directory / "onnx")))
    log = directory / "log.txt"
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, program], env=environment, stdout=subprocess.PIPE, stderr=stderr
        ) as process,
    ):
        assert process.stdout.readline().startswith(b"serving 1 style,")
        try:
            yield f"http://127.0.0.1:{config.port}", psutil.Process(process.pid), log
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0


def servers(process):
    """The processes that answer: those with a connection or a listener on the port."""
    return [child for child in process.children() if child.net_connections("tcp")]


def memory(process):
    return sum(child.memory_info().rss for child in servers(process))


def bomb():
    """A PNG of 144 megapixels in 20 kB."""
    content = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(content, "PNG")
    return content.getvalue()


def test_two_hundred_at_once_leave_no_line_and_no_memory(tmp_path):
    blank = io.BytesIO()
    Image.new("RGB", (1000, 900)).save(blank, "PNG")
    png, huge, state = {"Content-Type": "image/png"}, bomb(), np.linspace(-2, 2, STATE).tolist()
    with serving(tmp_path) as (address, process, log):

        def ask(number):
            match number % 5:
                case 0:
                    return requests.post(f"{address}/classify", blank.getvalue(), headers=png)
                case 1:
                    return stylize(address, huge)
                case 2:
                    return stylize(address, photo(180, 200, number))
                case 3:
                    return stylize(address, photo()[:-2000])
                case _:
                    return act(address, state=state)

        def all_at_once():
            with ThreadPoolExecutor(CLIENTS) as pool:
                return list(pool.map(ask, range(2 * CLIENTS)))

        all_at_once()
        before = memory(process)
        responses = all_at_once()
        for number, response in enumerate(responses):
            wanted = {0: 200, 1: 413, 2: 200, 3: 422, 4: 200}[number % 5]
            if response.status_code == 503:
                assert refused(response, 503, "try again")
            elif wanted != 200:
                assert refused(response, wanted)
            else:
                assert response.status_code == 200
        statuses = Counter(response.status_code for response in responses)
        assert statuses[503], statuses
        assert statuses[200], statuses
        wait_until(lambda: memory(process) < before + GROWTH_BYTES, "memory is back")
        assert log.read_text() == ""


def test_slow_and_half_closed_clients_hold_up_nobody(tmp_path):
    body = json.dumps({"state": [0.0] * STATE}).encode()
    head = b"POST /act/HalfCheetah HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with serving(tmp_path, timeout_s=8.0) as (address, process, log), ExitStack() as stack:
        port = int(address.rsplit(":", 1)[1])

        def connected(sent, half_closed=False):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.settimeout(PATIENCE_S)
            client.sendall(sent)
            if half_closed:
                client.shutdown(socket.SHUT_WR)
            return client

        def send_lines(client):
            line = b"X-A: " + b"a" * 1000 + b"\r\n"
            with suppress(ConnectionError):  # once the time is up
                while True:
                    client.sendall(line)

        def answer(client):
            received = b""
            while piece := client.recv(65_536):
                received += piece
            return received

        act(address, state=[0.0] * STATE)
        before = memory(process)
        silent = [connected(b"") for _ in range(30)]
        slow = [connected(whole[:-5]) for _ in range(30)]  # fewer than may be in work
        half_heads = [connected(head + b"X-A") for _ in range(30)]
        endless = [connected(head) for _ in range(3)]
        sending = stack.enter_context(ThreadPoolExecutor(len(endless))).map(send_lines, endless)
        half_closed = [connected(whole, half_closed=True) for _ in range(20)]
        cut_off = [connected(whole[:-5], half_closed=True) for _ in range(20)]
        gone = [connected(whole[:-5]) for _ in range(50)]
        for client in gone:
            client.close()
        state = np.linspace(-2, 2, STATE).tolist()
        for _ in range(50):
            assert act(address, state=state).json()["action"] == pytest.approx(
                bc_action(state).tolist(), abs=1e-6
            )
        assert all(answer(client).startswith(b"HTTP/1.1 200") for client in half_closed)
        assert all(answer(client).startswith(b"HTTP/1.1 431") for client in endless)
        for client in cut_off:
            assert answer(client).startswith(b"HTTP/1.1 422")
        for client in slow:
            received = answer(client)
            assert received.startswith(b"HTTP/1.1 408")
            assert b'{"error":"the request did not arrive in 8 seconds"}' in received
        assert all(answer(client) == b"" for client in silent + half_heads)
        list(sending)
        wait_until(lambda: memory(process) < before + GROWTH_BYTES, "memory is back")
        assert log.read_text() == ""


def test_a_process_that_dies_is_replaced_while_others_answer(tmp_path):
    with serving(tmp_path, workers=2) as (address, process, log):
        first = servers(process)
        assert len(first) == 2
        with asking_on(address) as answered:
            first[0].kill()
            wait_until(lambda: set(servers(process)) - set(first), "another one answers")
        assert answered[200]
        assert set(answered) <= {200, "cut off"}
        assert answered["cut off"] <= 4  # what the one that died was at
        assert first[1] in servers(process)
        assert log.read_text() == "a process of the server ended with status -9; another takes its place\n"


def test_whichever_process_is_asked_the_metrics_are_those_of_all(tmp_path):
    with serving(tmp_path, workers=2) as (address, _, _log):
        for _ in range(40):  # of a connection each, which either process may accept
            assert act(address, state=[0.0] * STATE).status_code == 200
        assert act(address, state=[]).status_code == 422
        assert requests.get(f"{address}/nowhere").status_code == 404
        for _ in range(10):
            told = {
                (sample.labels.get("route"), sample.labels.get("status")): sample.value
                for family in text_string_to_metric_families(requests.get(f"{address}/metrics").text)
                for sample in family.samples
                if sample.name == "singleshot_request_seconds_count"
            }
            assert told["/act/{environment}", "200"] == 40
            assert told["/act/{environment}", "422"] == 1
            assert told["other", "404"] == 1


def test_its_processes_end_with_it_even_if_it_is_killed(tmp_path):
    with suppress(AssertionError), serving(tmp_path, workers=2) as (_, process, _log):
        children = process.children(recursive=True)
        assert len(servers(process)) == 2
        process.kill()
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
