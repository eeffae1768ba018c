"""The HTTP side without Ray, with services that are slow, busy, loading or broken; what is served."""

import asyncio
import dataclasses
import io
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import small_graphs
from PIL import Image
from serving_clients import photo, serving_config
from small_graphs import BC, BCQ, STATE, write_all, write_bc, write_classifier, write_style
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect
from waiting import PATIENCE_S

from pipelines.serving import app as serving_app
from pipelines.serving.app import build_app
from pipelines.serving.batching import BatchQueue, Served
from pipelines.serving.limits import Limits
from pipelines.serving.models import contents_of, find_models, received
from pipelines.serving.watching import _posture
from singleshot.errors import UserError
from singleshot.rl.environments import LOCOMOTION, make_environment

STATES = {"state": [0] * STATE}


@pytest.fixture
def models(tmp_path):
    write_all(tmp_path)
    return find_models(tmp_path)


@pytest.fixture
def client_of(models, monkeypatch):
    """Makes a client of the application where a test says what comes of an action."""

    def make(act=None, timeout_s=PATIENCE_S, **changes):
        def services(*_):
            return SimpleNamespace(act=act)

        if act:
            monkeypatch.setattr(serving_app, "Services", services)
        limits = dataclasses.replace(serving_config().act, **changes)
        config = serving_config(act=limits, timeout_s=timeout_s)
        return TestClient(build_app(models, config), raise_server_exceptions=False)

    return make


def answering(value):
    async def act(_):
        return Served(value, 1)

    return act


def test_ready_when_it_answers(client_of):
    client = client_of()
    assert client.get("/readyz").json() == {"status": "ready"}
    assert client.get("/healthz").json() == {"status": "alive"}


@pytest.mark.parametrize("left_by_the_proxy", ["", "/singleshot"])
def test_behind_a_proxy_page_and_api_are_found_under_its_path(models, left_by_the_proxy):
    client = TestClient(build_app(models, serving_config(root_path="/singleshot")))
    for path in ("/", "/models", "/docs"):
        assert client.get(left_by_the_proxy + path).status_code == 200
    assert client.post(f"{left_by_the_proxy}/act/HalfCheetah", json=STATES).status_code == 200
    assert "'/singleshot/openapi.json'" in client.get(f"{left_by_the_proxy}/docs").text
    described = client.get(f"{left_by_the_proxy}/openapi.json").json()
    assert described["servers"] == [{"url": "/singleshot"}]
    with client.websocket_connect(f"{left_by_the_proxy}/watch/HalfCheetah?policies={BC}") as socket:
        assert socket.receive_json()["agents"]


@pytest.mark.parametrize("path", ["singleshot", "/singleshot/", "/"])
def test_a_root_path_of_another_form_is_refused(path):
    with pytest.raises(UserError, match="begin with a slash"):
        serving_config(root_path=path)


def test_a_request_for_no_path_is_not_found(client_of):
    """`POST * HTTP/1.1`, as a scanner sends it: ASGI's path is then `*`."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "*", "query_string": b"", "headers": []}
    asyncio.run(client_of().app(scope, None, send))
    assert sent[0]["status"] == 404


SHORT_S = 0.2


def test_no_answer_in_time_is_504_and_the_work_is_cancelled(client_of):
    cancelled = threading.Event()

    async def never(_):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    response = client_of(never, timeout_s=SHORT_S).post("/act/HalfCheetah", json=STATES)
    assert (response.status_code, response.json()) == (504, {"error": "no answer in 0.2 seconds"})
    assert cancelled.is_set()


def test_a_request_that_does_not_arrive_is_408(models):
    app = build_app(models, serving_config(timeout_s=SHORT_S))
    sent = []

    async def stalled():
        if not sent_half:
            sent_half.append(True)
            return {"type": "http.request", "body": b"{", "more_body": True}
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


def test_every_request_has_the_same_time_also_after_a_pause():
    async def never(*_):
        await asyncio.Event().wait()

    async def seconds_until_refused():
        start = time.monotonic()
        with pytest.raises(HTTPException, match="did not arrive"):
            await limits({}, None, None)
        return time.monotonic() - start

    async def three():
        first = asyncio.create_task(seconds_until_refused())
        await asyncio.sleep(SHORT_S / 2)
        return [*await asyncio.gather(first, seconds_until_refused()), await seconds_until_refused()]

    limits = Limits(never, serving_config().act, SHORT_S)
    assert min(asyncio.run(three())) > 0.9 * SHORT_S


def test_more_requests_than_allowed_are_503_but_health_is_told(client_of):
    started, end = threading.Semaphore(0), threading.Event()

    async def slow(_):
        started.release()
        await asyncio.to_thread(end.wait)
        return Served(np.zeros(6, np.float32), 1)

    with client_of(slow, max_requests=2) as client, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(client.post, "/act/HalfCheetah", json=STATES) for _ in range(2)]
        for _ in waiting:
            started.acquire()
        refused = client.post("/act/HalfCheetah", json=STATES)
        healthy = client.get("/healthz")
        end.set()
        assert [each.result().status_code for each in waiting] == [200, 200]
        assert client.post("/act/HalfCheetah", json=STATES).status_code == 200
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert "2 requests are in progress" in refused.json()["error"]
    assert healthy.status_code == 200


def test_what_the_event_loop_has_at_one_time_is_a_batch():
    def compute(items):
        if "bad" in items:
            raise ZeroDivisionError
        return [item.upper() for item in items]

    async def ask():
        queue = BatchQueue(compute, max_batch_size=2)
        waiting = [queue(item) for item in ("a", "given up", "b", "c", "bad", "d")]
        waiting[1].cancel()
        together = await asyncio.gather(*waiting, return_exceptions=True)
        return [*together, await queue("e")]

    a, given_up, b, c, bad, d, e = asyncio.run(ask())
    assert [a, b, d, e] == [Served("A", 2), Served("B", 2), Served("D", 1), Served("E", 1)]
    assert isinstance(given_up, asyncio.CancelledError)
    assert isinstance(c, ZeroDivisionError)  # of the batch of the bad one
    assert isinstance(bad, ZeroDivisionError)


def test_our_own_mistake_tells_nothing_of_us(client_of):
    async def broken(_):
        raise ZeroDivisionError("a secret")

    response = client_of(broken).post("/act/HalfCheetah", json=STATES)
    assert response.status_code == 500
    assert response.json() == {"error": "internal error; the server's log says more"}


def test_an_action_that_is_no_number_is_the_states_fault(client_of):
    response = client_of(answering(np.full(6, np.nan))).post("/act/HalfCheetah", json=STATES)
    assert (response.status_code, "finite" in response.json()["error"]) == (422, True)


def test_without_models_of_a_kind_its_route_says_so(tmp_path):
    write_style(tmp_path / "swirls.onnx", "swirls")
    client = TestClient(build_app(find_models(tmp_path), serving_config()))
    assert client.post("/act/Hopper", json=STATES).json() == {
        "error": "no environment 'Hopper'; there is none"
    }
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
    with received(contents_of(models)) as sent:
        assert [(model.name, model.card.form) for model in sent] == [(BC, "dense"), (cell, "compacted")]


def test_a_graph_that_computes_no_numbers_is_not_served(tmp_path, monkeypatch):
    weights = small_graphs.W_STATE.copy()
    weights[3, 2] = np.nan
    monkeypatch.setattr(small_graphs, "W_STATE", weights)
    write_bc(tmp_path / "bc.onnx")
    with pytest.raises(UserError, match=r"bc\.onnx: its answers are no numbers, nor are some weights"):
        find_models(tmp_path)


def test_a_style_is_known_by_both_of_its_names_and_shown_with_its_painting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_style(Path("onnx/a.onnx"), "swirls")
    write_style(Path("onnx/b.onnx"), "swirls/snip-0.98")
    write_style(Path("mine.onnx"), "mine")
    for folder, colour in (("data/images/paintings/swirls", "red"), ("styles/mine", "blue")):
        Path(folder).mkdir(parents=True)
        Image.new("RGB", (640, 400), colour).save(f"{folder}/painting.png")
    models = find_models(Path("onnx"), [Path("mine.onnx")])
    with received(contents_of(models)) as sent:
        client = TestClient(build_app(sent, serving_config()))
    found = {
        each["name"]: (each["pruner"], each["painting"]) for each in client.get("/models").json()["style"]
    }
    assert found == {"mine": (None, True), "swirls": (None, True), "swirls/snip-0.98": ("snip", True)}
    for name, colour in (
        ("mine", (0, 0, 255)),
        ("swirls/snip-0.98", (255, 0, 0)),
        ("swirls-snip-0.98", (255, 0, 0)),
    ):
        picture = {"content": photo(), "headers": {"Content-Type": "image/png"}}
        assert client.post(f"/stylize/{name}", **picture).status_code == 200
        painting = Image.open(io.BytesIO(client.get(f"/paintings/{name}").content))
        assert painting.size == (320, 200)
        assert np.abs(np.subtract(painting.getpixel((9, 9)), colour)).max() < 5


def test_a_damaged_painting_or_a_pipe_keeps_no_style_from_being_served(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    write_style(Path("onnx/a.onnx"), "swirls")
    os.mkfifo("onnx/pipe.onnx")
    painting = Path("data/images/paintings/swirls/painting.png")
    painting.parent.mkdir(parents=True)
    painting.write_bytes(b"no picture")
    (model,) = find_models(Path("onnx"))
    assert (model.name, model.painting) == ("swirls", None)
    assert f"swirls is served without its painting: {painting}: can't be read as a picture" in caplog.text


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


def test_agents_are_watched_where_mujoco_has_them_until_they_leave(models):
    client = TestClient(build_app(models, serving_config()))
    with client.websocket_connect(f"/watch/HalfCheetah?policies={BC}&policies={BCQ}") as socket:
        frames = [socket.receive_json()["agents"] for _ in range(3)]
        socket.send_json({"push": 500})
        frames += [socket.receive_json()["agents"] for _ in range(3)]
    assert all([agent["policy"] for agent in agents] == [BC, BCQ] for agents in frames)
    environment = make_environment(LOCOMOTION["HalfCheetah"])
    environment.reset(seed=0)
    radii = [capsule[4] for capsule in frames[0][0]["capsules"]]
    sizes = environment.unwrapped.model.geom_size[1:, 0]  # the first is the floor
    assert sorted(radii) == pytest.approx(sorted(sizes), abs=1e-3)
    seconds = [agents[0]["seconds"] for agents in frames]
    assert np.diff(seconds) == pytest.approx([0.05] * 5)  # HalfCheetah's step


def test_the_start_is_told_without_a_watcher(models):
    client = TestClient(build_app(models, serving_config()))
    start = client.get("/watch/HalfCheetah").json()
    with client.websocket_connect(f"/watch/HalfCheetah?policies={BC}") as socket:
        first = socket.receive_json()["agents"][0]
    assert (start["seconds"], start["posture"]) == (0, "on its feet")
    assert np.shape(start["capsules"]) == np.shape(first["capsules"])
    assert np.abs(np.subtract(start["capsules"], first["capsules"])).max() < 0.5  # metres in a step
    assert client.get("/watch/Ant").status_code == 404


@pytest.mark.parametrize(
    ("fell", "upright", "pace", "seconds", "posture"),
    [
        (True, 1.0, 3.0, 5.0, "fell"),
        (False, -0.9, 3.0, 5.0, "on its back"),
        (False, 0.7, -1.8, 5.0, "on its nose"),
        (False, 0.7, 0.0, 5.0, "on its nose"),
        (False, 0.7, 8.0, 5.0, "on its feet"),  # it leaps
        (False, 0.9, 0.1, 5.0, "standing still"),
        (False, 0.9, 0.1, 0.5, "on its feet"),  # it has just begun
        (False, 0.9, -3.0, 5.0, "on its feet"),
    ],
)
def test_a_posture_is_told_by_tilt_and_pace(fell, upright, pace, seconds, posture):
    episode = SimpleNamespace(fell=fell, upright=upright, pace=pace, seconds=seconds)
    assert _posture(episode) == posture


@pytest.mark.parametrize(
    ("address", "status", "words"),
    [
        ("/watch/HalfCheetah?policies=mine", 404, f"no policy 'mine'; there are {BC}"),
        (f"/watch/Hopper?policies={BC}", 404, "no environment 'Hopper'; there are HalfCheetah"),
        (f"/watch/HalfCheetah?policies={BC}" + f"&policies={BC}" * 4, 422, "name 1 to 4"),
        ("/watch/HalfCheetah", 422, "name 1 to 4"),
    ],
)
def test_a_wrong_address_to_watch_is_refused_in_words(models, address, status, words):
    client = TestClient(build_app(models, serving_config()))
    with pytest.raises(WebSocketDenialResponse) as refused, client.websocket_connect(address):
        pass
    assert refused.value.status_code == status
    assert words in refused.value.json()["error"]


@pytest.mark.parametrize("sent", ['{"push": 1e9}', "["])
def test_a_watcher_is_told_in_words_why_it_is_sent_away(models, sent):
    client = TestClient(build_app(models, serving_config()))

    def watch():
        with client.websocket_connect(f"/watch/HalfCheetah?policies={BC}") as socket:
            socket.send_text(sent)
            while True:
                socket.receive_json()

    with pytest.raises(WebSocketDisconnect) as caught:
        watch()
    assert 'send {"push": NEWTON}' in caught.value.reason
