"""The application without a network; answers are compared with what NumPy makes of their graphs."""

import asyncio
import io
import os
import re
import zlib
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import urljoin

import numpy as np
import onnx
import psutil
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from serving_clients import MAX_BODY, endless_jpeg, photo, pixels_of, refused, serving_config
from skimage import data
from small_graphs import (
    BC,
    BCQ,
    LABELS,
    LATENT,
    SAMPLES,
    STATE,
    bc_action,
    bcq_action,
    logits,
    write_all,
    write_bc,
    write_classifier,
    write_style,
)
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from singleshot.errors import UserError
from singleshot.export.classifier import PREPROCESSING, preprocess
from singleshot.io.images import read_rgb
from singleshot.rl.environments import LOCOMOTION, make_environment
from singleshot.serving.app import build_app
from singleshot.serving.models import Policy, find_models, made_graphs
from singleshot.serving.watching import MAX_WATCHERS
from singleshot.style.apply.light import bounded

PNG = {"Content-Type": "image/png"}
STATES = {"state": [0.0] * STATE}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    directory = tmp_path_factory.mktemp("onnx")
    write_all(directory)
    return find_models(directory)


def client_of(models, **changes):
    return TestClient(
        build_app(models, serving_config(**changes)), "http://localhost", raise_server_exceptions=False
    )


@pytest.fixture(scope="module")
def client(models):
    with client_of(models) as client:
        yield client


def stylize(client, content, headers=PNG, **query):
    return client.post("/stylize/swirls", content=content, headers=headers, params=query)


def act(client, **body):
    return client.post("/act/HalfCheetah", json=body)


def watching(client, address, **options):
    return client.websocket_connect(f"ws://localhost{address}", **options)


# Pictures


@pytest.mark.parametrize("name", ["PNG", "JPEG", "HEIF"])
def test_a_picture_of_any_format_is_stylised_as_strongly_as_asked(client, name):
    content = photo(41, 33, file_format=name)
    original = (read_rgb(io.BytesIO(content)) * 255).byte().permute(1, 2, 0).numpy().astype(int)
    for strength, expected in ((0, original), (0.5, np.full_like(original, 127.5)), (1, 255 - original)):
        answer = stylize(client, content, {"Content-Type": f"image/{name.lower()}"}, strength=strength)
        assert answer.headers["Content-Type"] == "image/png"
        assert np.abs(pixels_of(answer.content) - expected).max() <= 1


def test_strokes_are_drawn_in_a_smaller_picture_and_faces_stay(client):
    content = photo(190, 190)
    negative = 255 - pixels_of(content)
    assert np.array_equal(pixels_of(stylize(client, content, stroke=1).content), negative)
    coarse = pixels_of(stylize(client, content, stroke=20).content)  # 38 pixels, a fifth
    assert np.abs(coarse.astype(int) - negative).mean() > 20  # the noise's colours are gone
    astronaut = Image.fromarray(data.astronaut()[:380, 40:420]).resize((190, 190), Image.Resampling.BOX)
    buffer = io.BytesIO()
    astronaut.save(buffer, "PNG")
    pixels = np.asarray(astronaut)
    kept = pixels_of(stylize(client, buffer.getvalue(), keep_faces="true").content)
    assert np.array_equal(kept[55:65, 88:98], pixels[55:65, 88:98])  # the nose
    assert np.array_equal(kept[-30:], bounded(pixels, 255 - pixels)[-30:])


def test_classes_are_the_graphs(client):
    content = photo(240, 300)
    picture = preprocess(read_rgb(io.BytesIO(content)), PREPROCESSING["efficientnet_lite0"])
    weights = np.exp(logits(picture.numpy().astype(float)))
    probabilities = weights / weights.sum()
    best = np.argsort(-probabilities)[:5]
    answers = client.post("/classify", content=content, headers=PNG).json()["answers"]
    assert [each["label"] for each in answers] == [LABELS[index] for index in best]
    assert [each["probability"] for each in answers] == pytest.approx(probabilities[best].tolist(), abs=1e-5)
    other = client.post("/classify?preparation=reported", content=content, headers=PNG).json()["answers"]
    assert other != answers
    jpeg = stylize(client, photo(), PNG | {"Accept": "image/jpeg"})
    assert jpeg.headers["Content-Type"] == "image/jpeg"
    assert Image.open(io.BytesIO(jpeg.content)).format == "JPEG"


@pytest.mark.parametrize(
    ("content", "headers", "query", "status", "word"),
    [
        (b"no picture", PNG, {}, 422, "image/png"),
        (photo().replace(b"IDAT", b"IDAX", 1), PNG, {}, 422, ""),
        (photo(file_format="TIFF"), PNG, {}, 422, "image/png"),
        (photo(4, 50), PNG, {}, 422, "50x4"),
        (photo(210, 210), PNG, {}, 413, "210x210"),
        (photo(), {"Content-Type": "multipart/form-data; boundary=x"}, {}, 415, "image/png"),
        (zlib.compress(b"") * 1000, PNG | {"Content-Encoding": "deflate"}, {}, 415, "Content-Encoding"),
        (photo(), PNG, {"stroke": "large"}, 422, "stroke"),
        (photo(), PNG, {"strenght": 0.3}, 422, "strenght"),
    ],
)
def test_what_is_no_picture_or_too_large_is_refused(client, content, headers, query, status, word):
    assert refused(stylize(client, content, headers, **query), status, word)


def test_more_pictures_than_may_wait_and_bad_actions_are_refused(models, monkeypatch):
    client, nan = client_of(models, max_pictures=0), np.full((1, 6), np.nan, np.float32)
    assert act(client, **STATES).status_code == 200  # the policy is open
    answer = stylize(client, photo())
    assert refused(answer, 503, "try again")
    assert answer.headers["Retry-After"]
    monkeypatch.setattr("singleshot.io.onnx_model.OnnxModel.__call__", lambda *_, **__: {"action": nan})
    assert refused(act(client, **STATES), 422, "finite")
    with pytest.raises(UserError, match="root_path"):
        serving_config(root_path="/singleshot/")


def test_bodies_are_measured_and_bombs_are_known_by_their_heads(client):
    noise = np.random.default_rng(0).bytes(MAX_BODY + 1)
    pieces = (noise[start : start + 10_000] for start in range(0, len(noise), 10_000))
    assert refused(stylize(client, pieces), 413, "0.3 MB")  # chunked: no Content-Length
    assert refused(stylize(client, noise), 413, "0.3 MB")
    assert refused(act(client, state=[0.123456789] * 90_000), 413, "1 MB")
    bomb = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(bomb, "PNG")
    assert refused(stylize(client, bomb.getvalue()), 413, "12000x12000")


def test_bodies_in_memory_have_a_limit_together(models):
    """Clients may send most of a picture each, and wait."""

    app = build_app(models, serving_config(max_pictures=1))
    headers = [(b"host", b"localhost"), (b"content-type", b"image/png")]
    head = {
        "type": "http",
        "method": "POST",
        "path": "/stylize/swirls",
        "query_string": b"",
        "headers": headers,
    }

    async def ask():
        sent, answer = asyncio.Event(), []
        parts = iter([{"type": "http.request", "body": bytes(MAX_BODY - 10), "more_body": True}])

        async def most_of_a_body():
            if (part := next(parts, None)) is None:
                sent.set()
                await asyncio.Event().wait()
            return part

        async def another():
            return {"type": "http.request", "body": photo()}

        async def send(message):
            answer.append(message)

        waiting = asyncio.create_task(app(head, most_of_a_body, send))
        await sent.wait()
        await app(head, another, send)
        waiting.cancel()
        return answer.copy()

    start, body = asyncio.run(ask())
    assert start["status"] == 503
    assert b"try again" in body["body"]


def test_a_picture_process_that_is_killed_and_a_graph_that_is_gone_cost_no_more(tmp_path):
    write_style(tmp_path / "swirls.onnx", "swirls")
    content = (tmp_path / "swirls.onnx").read_bytes()
    models = [replace(model, painting=tmp_path / "gone.png") for model in find_models(tmp_path)]
    (tmp_path / "swirls.onnx").unlink()
    before = set(psutil.Process().children())
    with client_of(models) as client:
        assert refused(client.get("/paintings/swirls"), 404, "swirls")
        assert refused(stylize(client, photo()), 503, "try again")
        (tmp_path / "swirls.onnx").write_bytes(content)
        (process,) = set(psutil.Process().children()) - before
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # all its threads, too
        assert stylize(client, photo()).status_code == 200


@pytest.mark.slow
def test_a_picture_that_takes_too_long_is_given_up_and_its_process_replaced(models):
    """A decoder goes on for minutes; what waits behind it has an answer all the same."""
    jpeg, limits = {"Content-Type": "image/jpeg"}, {"max_body_mb": 8.0, "stylize_pixels": 2_000_000}
    with client_of(models, timeout_s=5.0, **limits) as client:
        assert refused(stylize(client, endless_jpeg(), jpeg), 504, "5 seconds")
    with client_of(models, **limits) as client:
        assert refused(stylize(client, endless_jpeg(), jpeg), 422, "10 seconds to decode")
        assert client.get("/healthz").status_code == 200
        content = photo()
        assert np.array_equal(pixels_of(stylize(client, content).content), 255 - pixels_of(content))


# Actions


def test_actions_are_the_graphs(client):
    state = np.linspace(-2, 2, STATE).tolist()
    answer = act(client, state=state).json()
    assert answer["policy"] == BC
    assert answer["action"] == pytest.approx(bc_action(state).tolist(), abs=1e-6)


def test_latents_are_seeded_or_new(client):
    state = np.linspace(-1, 1, STATE).tolist()
    latents = np.random.default_rng(7).standard_normal((SAMPLES, LATENT), np.float32)
    seeded = act(client, state=state, policy=BCQ, seed=7).json()
    assert seeded["action"] == pytest.approx(bcq_action(state, latents).tolist(), abs=1e-6)
    new = [act(client, state=state, policy=BCQ).json()["action"] for _ in range(2)]
    assert new[0] != new[1]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ('{"state": [NaN' + ", 0" * (STATE - 1) + "]}", "state"),
        ('{"state": [0, 1]}', "17"),
        ('{"state": ["0"]}', "state"),
        ("\xff", ""),
        ("[" * 100_000, ""),
        ('{"state": [0], "speed": 1}', "speed"),
    ],
)
def test_bad_states_are_422(client, body, word):
    assert refused(client.post("/act/HalfCheetah", content=body.encode("latin-1")), 422, word)


def test_unknown_names_are_told_with_the_known_ones(client):
    assert refused(client.post("/stylize/cubism", content=photo(), headers=PNG), 404, "cubism", "swirls")
    assert refused(client.post("/act/Ant", json=STATES), 404, "Ant", "HalfCheetah")
    assert refused(act(client, **STATES, policy="mine"), 404, "mine", BC, BCQ)
    assert refused(act(client, **STATES, policy=""), 404, BC)
    assert refused(client.post("/classify?classifier=", content=photo(), headers=PNG), 404, "efficientnet")
    assert refused(client.get("/nowhere"), 404)
    assert refused(client.get("/classify"), 405)


# The server


def test_what_is_served_and_how_it_is_told(client):
    assert client.get("/healthz").json() == client.get("/readyz").json() == {"status": "alive"}
    found = client.get("/models").json()
    assert {kind: [each["name"] for each in found[kind]] for kind in found} == {
        "style": ["swirls"],
        "policy": [BC, BCQ],
        "classifier": ["efficientnet_lite0"],
    }
    assert {"/stylize/{style}", "/act/{environment}", "/classify"} < set(
        client.get("/openapi.json").json()["paths"]
    )
    head = client.head("/models")
    assert (head.status_code, head.headers["Content-Type"]) == (200, "application/json")


def test_requests_are_counted_by_route_and_process(client):
    def told():
        return {
            (sample.labels["route"], sample.labels["status"]): sample.value
            for family in text_string_to_metric_families(client.get("/metrics").text)
            for sample in family.samples
            if sample.name == "singleshot_request_seconds_count"
            and sample.labels["process"] == str(os.getpid())
        }

    before = told()
    act(client, **STATES)
    act(client, state=[])
    client.get("/nowhere")
    for key in (("/act/{environment}", "200"), ("/act/{environment}", "422"), ("other", "404")):
        assert told()[key] == before.get(key, 0) + 1


@pytest.mark.parametrize("left_by_the_proxy", ["", "/singleshot"])
def test_behind_a_proxy_page_and_api_are_found_under_its_path(models, left_by_the_proxy):
    """A browser asks for what the page and the API's description name, under the proxy's path."""
    client = client_of(models, root_path="/singleshot")

    def ask(address):
        assert address.startswith("/singleshot/")
        return client.get(left_by_the_proxy + address.removeprefix("/singleshot"))

    files = 0
    for page in ("/singleshot/", "/singleshot/docs"):
        text = ask(page).text
        for address in re.findall(r'(?:src|href)="([^"#:]+)"', text) + re.findall(r"url: '([^']+)'", text):
            assert ask(urljoin(page, address)).status_code == 200
            files += 1
    assert files >= 6
    for module in ("main", "common"):
        assert "javascript" in ask(f"/singleshot/page/{module}.js").headers["Content-Type"]
    assert client.post(f"{left_by_the_proxy}/act/HalfCheetah", json=STATES).status_code == 200
    assert ask("/singleshot/openapi.json").json()["servers"] == [{"url": "/singleshot"}]
    with watching(client, f"{left_by_the_proxy}/watch/HalfCheetah?policies={BC}") as socket:
        assert socket.receive_json()["agents"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("192.168.3.4:8000", 200),
        ("Mine.example:8000", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
def test_only_names_of_this_server_are_answered(models, host, status):
    """Else a page could have its own name lead here, and read what is served (DNS rebinding)."""
    client = client_of(models, names=("mine.example",))
    assert client.get("/models", headers={"Host": host}).status_code == status


def test_pages_of_other_sites_may_not_watch(models):
    client = client_of(models, names=("mine.example",))
    address = f"/watch/HalfCheetah?policies={BC}"
    for origin in ("http://localhost", "https://mine.example"):
        with watching(client, address, headers={"Origin": origin}) as socket:
            assert socket.receive_json()["agents"]
    for origin in ("http://localhost:3000", "https://evil.example", "null"):
        headers = {"Origin": origin}
        with pytest.raises(WebSocketDisconnect), watching(client, address, headers=headers):
            pass


def test_a_request_for_no_path_is_not_found(models):
    """`POST * HTTP/1.1`, as a scanner sends it: ASGI's path is then `*`."""
    sent = []

    async def send(message):
        sent.append(message)

    head = {"type": "http", "method": "POST", "path": "*", "query_string": b""}
    head["headers"] = [(b"host", b"localhost")]
    asyncio.run(build_app(models, serving_config())(head, None, send))
    assert sent[0]["status"] == 404


def test_our_own_mistake_tells_nothing_of_us(client, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr("singleshot.serving.models.Policy.__call__", broken)
    response = act(client, **STATES)
    assert refused(response, 500, "its log")
    assert "secret" not in response.text


# Models


def test_files_that_cannot_be_served_are_one_line(tmp_path):
    with pytest.raises(UserError, match=str(tmp_path)):
        find_models(tmp_path)
    file = tmp_path / "bc.onnx"
    write_bc(file)
    content = file.read_bytes()
    for kept in (0, len(content) // 2):
        file.write_bytes(content[:kept])
        with pytest.raises(UserError, match=r"bc\.onnx: not a"):
            find_models(tmp_path)
        assert find_models(tmp_path, again=True) == []


def test_a_policy_whose_action_is_not_what_its_card_says_is_not_served(tmp_path):
    file = tmp_path / "bc.onnx"
    write_bc(file)
    graph = onnx.load(file)
    (details,) = (entry for entry in graph.metadata_props if entry.key == "details")
    details.value = details.value.replace('"action_size": 6', '"action_size": 5')
    onnx.save(graph, file)
    with pytest.raises(UserError, match=r"bc\.onnx: its action isn't finite or of another size"):
        Policy(*find_models(tmp_path))


def test_one_graph_of_each_network_is_served(tmp_path):
    cell = "Hopper/bc/snip-0.95/seed-0"
    for name, form in [("a", "masked"), ("a-compacted", "compacted"), ("a-sparse", "masked")]:
        write_bc(tmp_path / cell / f"{name}.onnx", cell, form)
    for name in ("dense-sparse", "dense"):
        write_bc(tmp_path / BC / f"{name}.onnx")
    write_classifier(tmp_path / "classifiers/untrained.onnx", "random")
    os.mkfifo(tmp_path / "pipe.onnx")
    found = find_models(tmp_path)
    assert [(model.name, model.path.stem) for model in found] == [(BC, "dense"), (cell, "a-compacted")]
    client = client_of(found)
    assert refused(client.post("/classify", content=b"x", headers=PNG), 404, "there is none")


@pytest.mark.slow
def test_a_learned_style_is_exported_once_and_served_with_its_painting(tmp_path, monkeypatch, capsys):
    from small_networks import save_style

    monkeypatch.chdir(tmp_path)
    save_style(Path("styles/mine/model.safetensors"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    graphs, again = (made_graphs() for _ in range(2))
    assert again == graphs
    assert capsys.readouterr().out.count("styles/mine: exporting it as ONNX, once, in some 10 s\n") == 1
    painting = Path("styles/mine/painting.png")
    painting.write_bytes(photo())
    for name in ("swirls", "plain"):
        write_style(Path(f"onnx/{name}.onnx"), name)
    models = find_models(Path("onnx"), graphs)
    assert Path("onnx/swirls.onnx") in [model.path for model in models]  # not the shipped one
    with client_of(models) as client:
        found = {each["name"]: each["painting"] for each in client.get("/models").json()["style"]}
        assert found.items() >= {"mine": True, "swirls": True, "plain": False}.items()
        assert client.post("/stylize/mine", content=photo(), headers=PNG).status_code == 200
        assert client.get("/paintings/mine").content == painting.read_bytes()
        assert refused(client.get("/paintings/plain"), 404, "plain")


# Watching


def test_agents_are_watched_where_mujoco_has_them_until_they_leave(client):
    start = client.get("/watch/HalfCheetah").json()
    assert (start["seconds"], start["posture"]) == (0, "on its feet")
    with watching(client, f"/watch/HalfCheetah?policies={BC}&policies={BCQ}") as socket:
        frames = [socket.receive_json()["agents"] for _ in range(3)]
        socket.send_json({"push": 500})
        frames += [socket.receive_json()["agents"] for _ in range(3)]
    assert all([agent["policy"] for agent in agents] == [BC, BCQ] for agents in frames)
    assert np.abs(np.subtract(start["capsules"], frames[0][0]["capsules"])).max() < 0.5  # metres in a step
    environment = make_environment(LOCOMOTION["HalfCheetah"])
    environment.reset(seed=0)
    radii = [capsule[4] for capsule in frames[0][0]["capsules"]]
    sizes = environment.unwrapped.model.geom_size[1:, 0]  # the first is the floor
    assert sorted(radii) == pytest.approx(sorted(sizes), abs=1e-3)
    seconds = [agents[0]["seconds"] for agents in frames]
    assert np.diff(seconds) == pytest.approx([0.05] * 5)  # HalfCheetah's step


def test_wrong_addresses_and_messages_of_watchers_are_refused_in_words(client):
    for address, status, word in [
        ("/watch/HalfCheetah?policies=mine", 404, "mine"),
        (f"/watch/Hopper?policies={BC}", 404, "Hopper"),
        (f"/watch/HalfCheetah?policies={BC}" + f"&policies={BC}" * 4, 422, "policies"),
        ("/watch/HalfCheetah", 422, "policies"),
    ]:
        with pytest.raises(WebSocketDenialResponse) as denied, watching(client, address):
            pass
        assert denied.value.status_code == status
        assert word in denied.value.json()["error"]
    for message in ('{"push": 3000}', '{"push": 1, "jump": 2}', "["):
        with watching(client, f"/watch/HalfCheetah?policies={BC}") as socket:
            socket.send_text(message)
            with pytest.raises(WebSocketDisconnect) as closed:  # noqa: PT012
                while True:
                    socket.receive_json()
        assert (closed.value.code, "push" in closed.value.reason) == (1008, True)


def test_more_watchers_than_may_be_are_sent_away(client):
    address = f"/watch/HalfCheetah?policies={BC}"
    with ExitStack() as stack:
        for _ in range(MAX_WATCHERS):
            stack.enter_context(watching(client, address)).receive_json()
        with watching(client, address) as socket, pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
    assert closed.value.code == 1013
