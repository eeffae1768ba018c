"""Requests as clients make them, and a configuration small enough for a test."""

import io
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import requests
from PIL import Image
from ports import free_port
from small_graphs import STATE
from waiting import PATIENCE_S

from pipelines.config.serving import PicturesConfig, ServingConfig, StatesConfig

MAX_BODY = 300_000


def serving_config(**changes):
    given = {
        "host": "127.0.0.1",
        "port": free_port(),
        "root_path": "",
        "workers": 1,
        "max_workers": 2,
        "num_cpus": 0.5,
        "timeout_s": PATIENCE_S,
        "stylize": PicturesConfig(max_requests=32, max_body_mb=MAX_BODY / 1e6, max_pixels=40_000),
        "act": StatesConfig(max_requests=64, max_body_mb=MAX_BODY / 1e6, max_batch_size=8),
        "classify": PicturesConfig(max_requests=8, max_body_mb=MAX_BODY / 1e6, max_pixels=1_000_000),
    }
    return ServingConfig(**given | changes)


def photo(height=60, width=72, seed=0, file_format="PNG"):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, file_format)
    return buffer.getvalue()


def pixels_of(content):
    return np.asarray(Image.open(io.BytesIO(content)))


def stylize(url, content, media_type="image/png", **options):
    headers = {"Content-Type": media_type} | options.pop("headers", {})
    return requests.post(f"{url}/stylize/swirls", content, headers=headers, **options)


def act(url, **body):
    return requests.post(f"{url}/act/HalfCheetah", json=body)


@contextmanager
def asking_on(url, clients=4):
    """Clients that ask for actions within the context; yields how often each status was answered."""
    stop, answered = threading.Event(), Counter()

    def ask_on():
        while not stop.is_set():
            try:
                answered[act(url, state=[0.0] * STATE).status_code] += 1
            except requests.ConnectionError:
                answered["cut off"] += 1

    with ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask_on) for _ in range(clients)]
        try:
            yield answered
        finally:
            stop.set()
        for client in asking:
            client.result()


def refused(response, status, *words):
    """One line of JSON that says why, and nothing of our insides."""
    assert response.status_code == status, response.text
    (key, error), *more = response.json().items()
    assert (key, more) == ("error", [])
    assert "Traceback" not in error
    for word in words:
        assert word in error
    return True
