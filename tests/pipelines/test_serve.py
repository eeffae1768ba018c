"""The services, asked over HTTP as clients do; answers are compared with what NumPy makes of their graphs."""

import codecs
import gzip
import io
import json
import re
import socket
import zlib
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urljoin

import numpy as np
import pytest
import requests
from PIL import Image
from serving_clients import MAX_BODY, act, photo, pixels_of, refused, serving_config, stylize
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
    stylised,
    write_all,
)

from pipelines.engine.execution import ExecutorConfig
from pipelines.serving.models import find_models
from pipelines.serving.server import running
from singleshot.errors import UserError
from singleshot.export.classifier import PREPROCESSING, preprocess
from singleshot.io.images import read_rgb
from singleshot.style.apply.light import bounded

STATES = {"state": [0.0] * STATE}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    directory = tmp_path_factory.mktemp("onnx")
    write_all(directory)
    with running(find_models(directory), serving_config(), ExecutorConfig(kind="ray")) as (address,):
        yield address


def expected_pixels(content, strength=1.0):
    picture = read_rgb(io.BytesIO(content)).numpy()
    blend = picture + strength * (stylised(picture) - picture)
    return (blend * 255).round().astype(np.uint8).transpose(1, 2, 0)


def near(pixels, expected):
    """Equal but for the rounding of halves."""
    assert pixels.shape == expected.shape
    return np.abs(pixels.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("size", [(60, 72), (41, 33), (8, 9)])
def test_stylised_pictures_are_the_graphs(url, size):
    content = photo(*size)
    response = stylize(url, content)
    assert (response.status_code, response.headers["Content-Type"]) == (200, "image/png")
    assert np.array_equal(pixels_of(response.content), 255 - pixels_of(content))


def test_strength_blends_and_other_formats_are_taken(url):
    content = photo(file_format="JPEG")
    original = (read_rgb(io.BytesIO(content)) * 255).byte().permute(1, 2, 0).numpy()
    untouched = stylize(url, content, "image/jpeg", params={"strength": 0})
    assert np.array_equal(pixels_of(untouched.content), original)
    half = stylize(url, content, "image/jpeg", params={"strength": 0.5})
    assert near(pixels_of(half.content), expected_pixels(content, 0.5))


def test_strokes_are_drawn_in_a_smaller_picture(url):
    content = photo(190, 190)
    negative = 255 - pixels_of(content)
    assert np.array_equal(pixels_of(stylize(url, content, params={"stroke": 1}).content), negative)
    coarse = pixels_of(stylize(url, content, params={"stroke": 20}).content)  # 38 pixels, a fifth
    assert np.abs(coarse.astype(int) - negative).mean() > 20  # the noise's colours are gone
    means = [pixels.reshape(38, 5, 38, 5, 3).mean(axis=(1, 3)) for pixels in (coarse, negative)]
    assert np.abs(means[0] - means[1]).mean() < 10
    for stroke in (0, 21, "large"):
        assert refused(stylize(url, content, params={"stroke": stroke}), 422, "stroke")


def test_a_misspelt_setting_is_refused_and_not_ignored(url):
    assert refused(stylize(url, photo(), params={"strenght": 0.3}), 422, "strenght")


def test_faces_can_stay_as_they_are(url):
    astronaut = Image.fromarray(data.astronaut()[:380, 40:420]).resize((190, 190), Image.Resampling.BOX)
    buffer = io.BytesIO()
    astronaut.save(buffer, "PNG")
    pixels = np.asarray(astronaut)
    kept = pixels_of(stylize(url, buffer.getvalue(), params={"keep_faces": "true"}).content)
    assert np.array_equal(kept[55:65, 88:98], pixels[55:65, 88:98])  # the nose
    negative = bounded(pixels, 255 - pixels)
    assert np.array_equal(kept[-30:], negative[-30:])
    assert np.array_equal(kept[:, -30:], negative[:, -30:])


def test_black_stays_black_as_in_the_commands_pictures(url):
    pixels = np.full((64, 64, 3), 255, np.uint8)
    pixels[:, :32] = 0
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    answer = pixels_of(stylize(url, buffer.getvalue()).content)  # the graph's would be a negative
    assert not answer[:, :29].any()


@pytest.mark.parametrize("name", ["HEIF", "AVIF", "GIF", "BMP", "WEBP"])
def test_formats_of_phones_and_browsers_are_taken(url, name):
    content = photo(file_format=name)
    answer = stylize(url, content, f"image/{name.lower()}", params={"strength": 0})
    original = (read_rgb(io.BytesIO(content)) * 255).byte().permute(1, 2, 0).numpy()
    assert np.array_equal(pixels_of(answer.content), original)


def test_a_form_with_a_file_is_taken_and_jpeg_is_given(url):
    content = photo()
    form = requests.post(f"{url}/stylize/swirls", files={"picture": ("a.png", content)})
    assert form.content == stylize(url, content).content
    jpeg = stylize(url, content, headers={"Accept": "image/webp, image/jpeg"})
    assert jpeg.headers["Content-Type"] == "image/jpeg"
    assert Image.open(io.BytesIO(jpeg.content)).format == "JPEG"
    assert refused(stylize(url, content, headers={"Accept": "text/html"}), 406, "image/png")


def test_actions_are_the_graphs(url):
    state = np.linspace(-2, 2, STATE).tolist()
    answer = act(url, state=state)
    assert answer.status_code == 200
    assert answer.json()["policy"] == BC
    assert answer.json()["action"] == pytest.approx(bc_action(state).tolist(), abs=1e-6)


def test_latents_are_given_or_seeded_or_new(url):
    state = np.linspace(-1, 1, STATE).tolist()
    latents = np.random.default_rng(7).standard_normal((SAMPLES, LATENT), np.float32)
    expected = bcq_action(state, latents).tolist()
    given = act(url, state=state, policy=BCQ, latents=latents.tolist()).json()
    seeded = act(url, state=state, policy=BCQ, seed=7).json()
    assert given["action"] == pytest.approx(expected, abs=1e-6)
    assert seeded["action"] == pytest.approx(expected, abs=1e-6)
    new = [act(url, state=state, policy=BCQ).json()["action"] for _ in range(2)]
    assert new[0] != new[1]


def test_classes_are_the_graphs(url):
    content = photo(240, 300)
    picture = preprocess(read_rgb(io.BytesIO(content)), PREPROCESSING["efficientnet_lite0"])
    weights = np.exp(logits(picture.numpy().astype(float)))
    probabilities = weights / weights.sum()
    best = np.argsort(-probabilities)[:5]
    response = requests.post(f"{url}/classify", content, headers={"Content-Type": "image/png"})
    assert [each["label"] for each in response.json()["answers"]] == [LABELS[index] for index in best]
    assert [each["probability"] for each in response.json()["answers"]] == pytest.approx(
        probabilities[best].tolist(), abs=1e-5
    )


def test_what_is_served_and_how_it_is_told(url):
    assert requests.get(f"{url}/healthz").json() == {"status": "alive"}
    assert requests.get(f"{url}/readyz").json() == {"status": "ready"}
    models = requests.get(f"{url}/models").json()
    assert {kind: [each["name"] for each in models[kind]] for kind in models} == {
        "style": ["swirls"],
        "policy": [BC, BCQ],
        "classifier": ["efficientnet_lite0"],
    }
    paths = requests.get(f"{url}/openapi.json").json()["paths"]
    assert {"/stylize/{style}", "/act/{environment}", "/classify"} < set(paths)


def test_unknown_names_are_told_with_the_known_ones(url):
    headers = {"Content-Type": "image/png"}
    assert refused(requests.post(f"{url}/stylize/cubism", photo(), headers=headers), 404, "cubism", "swirls")
    assert refused(requests.post(f"{url}/act/Ant", json={"state": [0]}), 404, "Ant", "HalfCheetah")
    assert refused(act(url, state=[0] * STATE, policy="mine"), 404, "mine", BC, BCQ)
    assert refused(act(url, state=[0] * STATE, policy="\ud800"), 422)  # no UTF-8 can say that
    assert refused(requests.get(f"{url}/nowhere"), 404)
    assert refused(requests.get(f"{url}/classify"), 405)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no picture",
        photo()[:-2000],
        photo()[:20],
        photo().replace(b"IDAT", b"IDAX", 1),
        photo(file_format="TIFF"),
    ],
    ids=["empty", "text", "truncated", "header", "damaged", "tiff"],
)
def test_damaged_pictures_are_422(url, content):
    assert refused(stylize(url, content), 422)
    assert refused(requests.post(f"{url}/classify", content, headers={"Content-Type": "image/png"}), 422)


def test_other_media_types_are_415(url):
    assert refused(stylize(url, photo(), "text/plain"), 415, "text/plain", "image/png")
    assert refused(requests.post(f"{url}/classify", photo()), 415, "missing")
    body = json.dumps({"state": [0] * STATE})
    headers = {"Content-Type": "text/plain"}
    assert refused(requests.post(f"{url}/act/HalfCheetah", body, headers=headers), 415, "application/json")


@pytest.mark.parametrize(
    "media_type", ["Application/JSON", "application/json;charset=UTF-8", 'application/json; charset="utf-8"']
)
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_json_is_taken_as_rfc_9110_and_8259_let_it_be_sent(url, media_type, mark):
    body, headers = mark + json.dumps(STATES).encode(), {"Content-Type": media_type}
    assert requests.post(f"{url}/act/HalfCheetah", body, headers=headers).status_code == 200


def test_json_in_another_charset_is_415(url):
    body, headers = json.dumps(STATES).encode("utf-16"), {"Content-Type": "application/json; charset=UTF-16"}
    assert refused(requests.post(f"{url}/act/HalfCheetah", body, headers=headers), 415, "utf-16", "UTF-8")


@pytest.mark.parametrize("media_type", ["image/jpg", "IMAGE/JPEG", "image/jpeg; name=a.jpg"])
def test_pictures_are_taken_as_programs_name_them(url, media_type):
    content = photo(file_format="JPEG")
    answer = stylize(url, content, media_type, headers={"Accept": "image/webp, Image/JPG"})
    assert answer.headers["Content-Type"] == "image/jpeg"


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("gzip", gzip.compress),
        ("GZIP", lambda content: gzip.compress(content[:9]) + gzip.compress(content[9:])),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("identity", bytes),
        ("identity, gzip,", gzip.compress),
        ("", bytes),
    ],
)
def test_compressed_bodies_are_taken(url, encoding, encode):
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    body = encode(json.dumps(STATES).encode())
    assert requests.post(f"{url}/act/HalfCheetah", body, headers=headers).json() == act(url, **STATES).json()
    content = photo()
    sent = stylize(url, encode(content), headers={"Content-Encoding": encoding})
    assert sent.content == stylize(url, content).content


def test_compressed_bodies_are_refused_in_words(url):
    def send(body, encoding):
        headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
        return requests.post(f"{url}/act/HalfCheetah", body, headers=headers)

    body = gzip.compress(json.dumps(STATES).encode())
    assert refused(send(gzip.compress(bytes(100 * MAX_BODY)), "gzip"), 413, "0.3 MB")
    for damaged in (body[:-9], b"no gzip", body + b"more"):
        assert refused(send(damaged, "gzip"), 422, "gzip")
    assert refused(send(body, "gzip, gzip"), 415, "gzip, gzip")
    unknown = send(body, "br")
    assert refused(unknown, 415, "br", "gzip")
    assert unknown.headers["Accept-Encoding"] == "gzip, deflate"


def test_an_empty_name_names_nothing(url):
    assert refused(act(url, **STATES, policy=""), 404, BC)
    picture = {"data": photo(), "headers": {"Content-Type": "image/png"}}
    assert refused(requests.post(f"{url}/classify?classifier=", **picture), 404, "efficientnet_lite0")
    assert refused(requests.post(f"{url}/stylize/", **picture), 404, "swirls")


@pytest.mark.parametrize("path", ["", "healthz", "readyz", "models", "metrics", "docs", "openapi.json"])
def test_head_is_get_without_the_body(url, path):
    get, head = requests.get(f"{url}/{path}"), requests.head(f"{url}/{path}")
    assert (get.status_code, head.status_code, head.content) == (200, 200, b"")
    assert head.headers["Content-Type"] == get.headers["Content-Type"]
    assert "HEAD" in requests.delete(f"{url}/{path}").headers["Allow"]


def test_the_page_of_the_api_needs_no_other_server(url):
    page = requests.get(f"{url}/docs").text
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(addresses) >= 2
    for address in addresses:
        assert requests.get(urljoin(f"{url}/docs", address)).status_code == 200
    assert "://" not in page.replace("http://www.w3.org", "")


def test_too_much_is_413(url):
    noise = np.random.default_rng(0).bytes(MAX_BODY + 1)
    assert refused(stylize(url, noise), 413, "0.3 MB")
    pieces = (noise[start : start + 10_000] for start in range(0, len(noise), 10_000))
    assert refused(stylize(url, pieces), 413, "0.3 MB")  # chunked: no Content-Length
    assert refused(act(url, state=[0.123456789] * 40_000), 413, "0.3 MB")
    bomb = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(bomb, "PNG")
    assert len(bomb.getvalue()) < MAX_BODY
    assert refused(stylize(url, bomb.getvalue()), 413, "12000x12000")
    assert refused(stylize(url, photo(210, 210)), 413, "210x210")
    assert refused(stylize(url, photo(4, 50)), 422, "50x4")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"state": [NaN' + ", 0" * (STATE - 1) + "]}", ("state", "finite")),
        ('{"state": [1e999' + ", 0" * (STATE - 1) + "]}", ("state", "finite")),
        ('{"state": [1e300' + ", 0" * (STATE - 1) + "]}", ("state", "less than or equal to")),
        ('{"state": [1' + "0" * 400 + ", 0" * (STATE - 1) + "]}", ("state",)),
        ('{"state": [0, 1]}', ("state", "17")),
        ('{"state": []}', ("state", "17")),
        ('{"state": ["0"]}', ("state",)),
        ('{"state": [[0]]}', ("state",)),
        ("{}", ("state",)),
        ("[]", ()),
        ("{", ()),
        ("\xff", ()),
        ("[" * 100_000, ()),
        ('{"state": [0], "speed": 1}', ("speed",)),
        ('{"state": [0], "seed": -1}', ("seed",)),
        (f'{{"state": {[0] * STATE}, "latents": [0]}}', ("latents", "none")),
        (f'{{"state": {[0] * STATE}, "policy": "{BCQ}", "latents": [[0], [0, 1]]}}', ("latents",)),
        (f'{{"state": {[0] * STATE}, "policy": "{BCQ}", "latents": [0]}}', ("latents", "3x12")),
    ],
)
def test_bad_states_are_422(url, body, words):
    headers = {"Content-Type": "application/json"}
    response = requests.post(f"{url}/act/HalfCheetah", body.encode("latin-1"), headers=headers)
    assert response.status_code in {400, 422}
    assert refused(response, response.status_code, *words)


def test_forty_at_once_are_answered_rightly(url):
    states = np.random.default_rng(1).standard_normal((20, STATE)).round(3).tolist()
    photos = [photo(24 + 8 * (seed % 2), 32, seed) for seed in range(10)]

    def one(number):
        if number < 20:
            return act(url, state=states[number], policy=BC)
        if number < 30:
            return stylize(url, photos[number - 20])
        if number < 34:  # as many as may wait: each may come before another has been handed on
            return requests.post(
                f"{url}/classify", photos[number - 30], headers={"Content-Type": "image/png"}
            )
        return stylize(url, b"damaged")

    with ThreadPoolExecutor(40) as pool:
        responses = list(pool.map(one, range(40)))
    for state, response in zip(states, responses[:20], strict=True):
        assert response.json()["action"] == pytest.approx(bc_action(state).tolist(), abs=1e-6)
    for content, response in zip(photos, responses[20:30], strict=True):
        assert np.array_equal(pixels_of(response.content), 255 - pixels_of(content))
    assert all(len(response.json()["answers"]) == 5 for response in responses[30:34])
    assert all(refused(response, 422) for response in responses[34:])
    sizes = [int(response.headers["X-Batch-Size"]) for response in responses[:20]]
    assert max(sizes) <= serving_config().act.max_batch_size


def test_more_than_may_wait_is_refused_at_once(url):
    """Of forty together eight are in work or wait; a photo of 900,000 pixels takes a while."""
    blank = io.BytesIO()
    Image.new("RGB", (1000, 900)).save(blank, "PNG")

    def one(_):
        headers = {"Content-Type": "image/png"}
        return requests.post(f"{url}/classify", blank.getvalue(), headers=headers)

    with ThreadPoolExecutor(40) as pool:
        responses = list(pool.map(one, range(40)))
    refusals = [response for response in responses if response.status_code != 200]
    assert 0 < len(refusals) < 40
    assert all(refused(response, 503) and response.headers["Retry-After"] for response in refusals)


def test_a_port_in_use_is_told_before_anything_starts(tmp_path):
    write_all(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = serving_config(port=taken.getsockname()[1])
        with (
            pytest.raises(UserError, match=rf"127.0.0.1:{config.port}: Address already in use; .*--port"),
            running(find_models(tmp_path), config, ExecutorConfig(kind="ray")),
        ):
            pass
