"""The server as users run it: many clients, bad ones among them, processes that die, and how it ends."""

import io
import os
import signal
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import requests
from PIL import Image
from serving_clients import endless_jpeg, photo, pixels_of, serving, serving_config, workers
from small_graphs import STATE, bc_action, write_all
from waiting import PATIENCE_S, wait_until

from pipelines.cli.serve import NAME, _preflight, hosts, replicas
from singleshot.errors import UserError
from singleshot.serving.models import find_models
from singleshot.serving.server import serve_forever

GROWTH_BYTES = 150e6
"""That a process may keep: buffers of its libraries, and what the allocator doesn't give back."""
DOCKERS_PATIENCE_S = 10
STUCK = """
from singleshot.serving import app


def create_app():
    made = app.create_app()

    @made.post("/stick")
    async def stick() -> None:
        while True:
            pass

    return made
"""
"""A module whose application has a fault that holds the event loop for ever."""


def act(address):
    return requests.post(f"{address}/act/HalfCheetah", json={"state": [0.0] * STATE})


def stylize(address, content):
    return requests.post(f"{address}/stylize/swirls", content, headers={"Content-Type": "image/png"})


@contextmanager
def asking_on(address, clients=4):
    """Clients that ask for actions within the context; yields how often each status was answered."""
    stop, answered = threading.Event(), Counter()

    def ask_on():
        while not stop.is_set():
            try:
                answered[act(address).status_code] += 1
            except requests.RequestException:
                answered["cut off"] += 1

    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask_on) for _ in range(clients)]
        try:
            yield answered
        finally:
            stop.set()
        for client in asking:
            client.result()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b", "127.0.0.1"])
def test_an_address_that_cannot_be_listened_on_is_a_line(tmp_path, host, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)  # they are this process's, too
    write_all(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = serving_config(host=host, port=taken.getsockname()[1])
        with pytest.raises(UserError, match=f"^{host}:{config.port} can.t be used .*--port$"):
            serve_forever(config, tmp_path)


@pytest.mark.slow
def test_two_hundred_at_once_leave_no_line_and_no_memory(tmp_path):
    bomb = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(bomb, "PNG")
    with serving(tmp_path, max_pictures=16) as (address, process, log):

        def ask(number):
            match number % 4:
                case 0:
                    return stylize(address, bomb.getvalue())
                case 1:
                    return stylize(address, photo(180, 200, number))
                case 2:
                    return stylize(address, photo()[:-2000])
                case _:
                    return act(address)

        def all_at_once():
            with ThreadPoolExecutor(200) as pool:
                return list(pool.map(ask, range(400)))

        def memory():
            return sum(each.memory_info().rss for each in process.children(recursive=True))

        all_at_once()
        before = memory()
        for number, response in enumerate(all_at_once()):
            assert response.status_code in {(413, 200, 422, 200)[number % 4], 503}
        assert act(address).json()["action"] == pytest.approx(bc_action([0.0] * STATE).tolist(), abs=1e-6)
        wait_until(lambda: memory() < before + GROWTH_BYTES, "memory is back")
        assert log.read_text() == ""


@pytest.mark.slow
def test_a_process_that_dies_or_is_stuck_is_replaced_while_others_answer(tmp_path):
    (tmp_path / "stuck.py").write_text(STUCK)
    before = (
        "import functools, uvicorn; run = uvicorn.run;"
        " uvicorn.run = lambda _, **options: run('stuck:create_app', **options)"
    )
    with serving(tmp_path, before, workers=2) as (address, process, log):
        first = workers(process)
        assert len(first) == 2
        (tmp_path / "onnx/half.onnx").write_bytes(b"half of a graph that is being written")
        with asking_on(address) as answered:
            first[0].kill()
            wait_until(lambda: len(set(workers(process)) - {first[0]}) == 2, "another one answers")
        assert answered[200]
        assert set(answered) <= {200, "cut off"}
        assert answered["cut off"] <= 4  # what the one that died was at
        second = set(workers(process))
        with pytest.raises(requests.ConnectionError):
            requests.post(f"{address}/stick")
        wait_until(lambda: len(workers(process)) == 2 and set(workers(process)) != second, "one is replaced")
        assert "in stick" in log.read_text()
        wait_until(lambda: act(address).status_code == 200, "the others answer")
        with suppress(requests.Timeout):
            requests.post(f"{address}/stick", timeout=1)
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(DOCKERS_PATIENCE_S + 5)  # on a busy machine
        assert time.monotonic() - start < DOCKERS_PATIENCE_S + 5


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_last_requests_are_answered_or_refused_before_docker_loses_patience(tmp_path, number):
    """A terminal's Ctrl-C goes to all processes that the command started, too."""
    config = {"workers": 2, "max_body_mb": 8.0, "stylize_pixels": 2_000_000}
    with serving(tmp_path, **config) as (address, process, log), ThreadPoolExecutor(2) as pool:
        content = photo()
        wait_until(lambda: stylize(address, content).status_code == 200, "pictures are drawn")
        assert np.array_equal(pixels_of(stylize(address, content).content), 255 - pixels_of(content))
        late = pool.submit(stylize, address, endless_jpeg())
        time.sleep(3)  # until it is being decoded
        children, start = process.children(recursive=True), time.monotonic()
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        process.wait(PATIENCE_S)
        assert time.monotonic() - start < DOCKERS_PATIENCE_S
        assert late.result().status_code == 503
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
    assert "Traceback" not in log.read_text()


@pytest.mark.slow
def test_its_processes_end_with_it_even_if_it_is_killed(tmp_path):
    with suppress(AssertionError), serving(tmp_path, workers=2) as (_, process, _log):
        children = process.children(recursive=True)
        assert len(workers(process)) == 2
        process.kill()
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []


def test_each_process_has_to_fit_on_one_node_of_a_cluster(monkeypatch):
    """Ray would wait for such a node for ever."""
    nodes = [{"Alive": True, "Resources": {"CPU": cores}} for cores in (2.0, 3.0, 0)]
    monkeypatch.setattr("ray.nodes", lambda: [*nodes, {"Alive": False, "Resources": {"CPU": 64.0}}])
    monkeypatch.setattr("ray.serve.status", lambda: SimpleNamespace(applications={}))
    for num_cpus, room in ((4.0, 0), (3.0, 1), (1.5, 3), (1.0, 5), (0.1, 50)):
        _preflight(serving_config(num_cpus=num_cpus, workers=room))
        too_many = serving_config(num_cpus=num_cpus, workers=room + 1)
        with pytest.raises(UserError, match=rf"{room + 1} times {num_cpus:g} cores, .* room for {room} of"):
            _preflight(too_many)


@pytest.mark.slow
def test_a_cluster_serves_the_same_application_and_replaces_a_replica(cluster, tmp_path):
    from ray import serve

    from pipelines.engine.on_ray import ray_cluster

    def running():
        name = f"ray::ServeReplica:{NAME}:application"
        return {each for each in psutil.process_iter(["name"]) if each.info["name"] == name}

    def status():
        return serve.status().applications[NAME].deployments["application"].status

    write_all(tmp_path)
    models, config = find_models(tmp_path), serving_config(workers=2)
    with ray_cluster(cluster):
        with replicas(models, config):
            (host,) = hosts(config)
            address = f"http://{host}:{config.port}"
            for model in models:
                model.path.unlink()  # nodes have no disk in common
            assert act(address).json()["action"] == pytest.approx(bc_action([0.0] * STATE).tolist(), abs=1e-6)
            content = photo()
            assert np.array_equal(pixels_of(stylize(address, content).content), 255 - pixels_of(content))
            wait_until(lambda: len(running()) == 2, "both replicas run")
            first = running()
            with asking_on(address) as answered:
                next(iter(first)).kill()
                # So Ray Serve calls what has fewer replicas than it should; that is not the end of anything.
                wait_until(lambda: status() == "UNHEALTHY", "the death is noticed")
                wait_until(lambda: status() == "HEALTHY", "another replica answers")
            assert answered[200]
            assert set(answered) <= {200, 500}
            assert len(running() & first) == 1
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{address}/healthz")
