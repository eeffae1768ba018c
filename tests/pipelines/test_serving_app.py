"""The HTTP side without Ray, with services that are slow, busy, loading or broken; what is served."""

import asyncio
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from small_graphs import BC, STATE, write_all, write_bc, write_classifier, write_style
from starlette.testclient import TestClient
from waiting import PATIENCE_S

from pipelines.config.serving import ServiceConfig, ServingConfig
from pipelines.serving.answers import Refusal, Served
from pipelines.serving.app import build_app
from pipelines.serving.models import cards_of, contents_of, find_models, open_models
from tasks.errors import UserError

SERVICE = ServiceConfig(1, 1, 0.1, 8, 1, 8)
CONFIG = ServingConfig("127.0.0.1", 8000, 0.1, 2, 0.01, PATIENCE_S, 10_000, 10_000, SERVICE, SERVICE, SERVICE)
STATES = {"state": [0] * STATE}


class Services:
    """Of which a test says what comes of an action."""

    def __init__(self, outcome=None, loading=()):
        self.outcome = outcome
        self.still_loading = loading

    async def act(self, policy, inputs):
        if callable(self.outcome):
            return await self.outcome()
        return self.outcome

    async def loading(self):
        return list(self.still_loading)


@pytest.fixture
def cards(tmp_path):
    write_all(tmp_path)
    return cards_of(find_models(tmp_path))


def client_of(cards, outcome=None, loading=(), **changes):
    app = build_app(cards, dataclasses.replace(CONFIG, **changes), Services(outcome, loading))
    return TestClient(app, raise_server_exceptions=False)


def test_ready_only_when_all_is_loaded(cards):
    response = client_of(cards, loading=["stylizer"]).get("/readyz")
    assert response.status_code == 503
    assert response.json() == {"error": "still loading: stylizer"}
    assert client_of(cards).get("/readyz").status_code == 200
    assert client_of(cards, loading=["stylizer"]).get("/healthz").status_code == 200


@pytest.fixture
def end_the_time(monkeypatch):
    """Called within a request, its time is up, however long it was given."""
    given, timeout = [], asyncio.timeout

    def noted(seconds):
        given.append(timeout(seconds))
        return given[-1]

    monkeypatch.setattr(asyncio, "timeout", noted)
    return lambda: given[-1].reschedule(asyncio.get_running_loop().time())


def test_no_answer_in_time_is_504_and_the_work_is_cancelled(cards, end_the_time):
    cancelled = threading.Event()

    async def never():
        end_the_time()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    response = client_of(cards, never).post("/act/HalfCheetah", json=STATES)
    assert (response.status_code, response.json()) == (504, {"error": f"no answer in {PATIENCE_S} seconds"})
    assert cancelled.is_set()


def test_a_request_that_does_not_arrive_is_408(cards, end_the_time):
    app = build_app(cards, CONFIG, Services())
    sent = []

    async def stalled():
        if not sent_half:
            sent_half.append(True)
            return {"type": "http.request", "body": b"{", "more_body": True}
        end_the_time()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message):
        sent.append(message)

    sent_half = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/act/HalfCheetah",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    asyncio.run(app(scope, stalled, send))
    assert sent[0]["status"] == 408
    assert b"did not arrive" in sent[1]["body"]


def test_more_requests_than_allowed_are_503_but_health_is_told(cards):
    started, end = threading.Semaphore(0), threading.Event()

    async def slow():
        started.release()
        await asyncio.to_thread(end.wait)
        return Served(np.zeros(6, np.float32), 1)

    with client_of(cards, slow) as client, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(client.post, "/act/HalfCheetah", json=STATES) for _ in range(2)]
        for _ in waiting:
            started.acquire()
        refused = client.post("/act/HalfCheetah", json=STATES)
        healthy = client.get("/healthz")
        end.set()
        assert [each.result().status_code for each in waiting] == [200, 200]
        assert client.post("/act/HalfCheetah", json=STATES).status_code == 200
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert "2 requests are in work" in refused.json()["error"]
    assert healthy.status_code == 200


def test_a_busy_service_is_503(cards):
    response = client_of(cards, Refusal(503, "too many")).post("/act/HalfCheetah", json=STATES)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")


def test_our_own_mistake_tells_nothing_of_us(cards):
    async def broken():
        raise ZeroDivisionError("a secret")

    response = client_of(cards, broken).post("/act/HalfCheetah", json=STATES)
    assert response.status_code == 500
    assert response.json() == {"error": "internal error; the server's log says more"}


def test_an_action_that_is_no_number_is_the_states_fault(cards):
    response = client_of(cards, Served(np.full(6, np.nan), 1)).post("/act/HalfCheetah", json=STATES)
    assert (response.status_code, "finite" in response.json()["error"]) == (422, True)


def test_without_models_of_a_kind_its_route_says_so(tmp_path):
    write_style(tmp_path / "swirls.onnx", "swirls")
    client = client_of(cards_of(find_models(tmp_path)))
    assert client.post("/act/Hopper", json=STATES).json() == {"error": "no task 'Hopper'; there is none"}
    picture = {"content": b"x", "headers": {"Content-Type": "image/png"}}
    assert client.post("/classify", **picture).status_code == 404


def test_one_graph_of_each_network_is_served(tmp_path):
    cell = "Hopper/bc/snip-0.95/seed-0"
    for name, form in [("a", "masked"), ("a-compacted", "compacted"), ("a-sparse", "masked")]:
        write_bc(tmp_path / cell / f"{name}.onnx", cell, form)
    for name in ("dense-sparse", "dense"):
        write_bc(tmp_path / BC / f"{name}.onnx")
    write_classifier(tmp_path / "classifiers/untrained.onnx", "random")
    models = find_models(tmp_path)
    assert [(model.name, model.path.stem) for model in models] == [(BC, "dense"), (cell, "a-compacted")]
    opened = open_models(contents_of(models, "policy"), threads=1)
    assert {name: model.card.form for name, model in opened.items()} == {BC: "dense", cell: "compacted"}


def test_files_that_cannot_be_served_are_one_line(tmp_path):
    with pytest.raises(UserError, match="no graph to serve; export some"):
        find_models(tmp_path)
    write_all(tmp_path)
    damaged = tmp_path / BC / "bc.onnx"
    content = damaged.read_bytes()
    for kept in (0, len(content) // 2, len(content) - 5):
        damaged.write_bytes(content[:kept])
        with pytest.raises(UserError, match=r"bc\.onnx: not a") as error:
            find_models(tmp_path)
        assert "\n" not in str(error.value)
