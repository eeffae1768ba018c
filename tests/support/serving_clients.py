"""Requests as clients make them, and a configuration small enough for a test."""

import dataclasses
import io
import socket

import numpy as np
import requests
from PIL import Image
from waiting import PATIENCE_S

from pipelines.config.serving import ServiceConfig, ServingConfig

MAX_BODY = 300_000
SERVICE = ServiceConfig(
    min_replicas=1, max_replicas=1, num_cpus=0.1, max_batch_size=8, batch_wait_ms=100, max_queued=64
)


def serving_config(**changes):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {
        "host": "127.0.0.1",
        "port": port,
        "num_cpus": 0.1,
        "max_requests": 64,
        "max_body_mb": MAX_BODY / 1e6,
        "timeout_s": PATIENCE_S,
        "stylize_max_pixels": 40_000,
        "classify_max_pixels": 1_000_000,
        "stylize": SERVICE,
        "act": SERVICE,
        "classify": dataclasses.replace(SERVICE, max_batch_size=2, max_queued=4),
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


def refused(response, status, *words):
    """One line of JSON that says why, and nothing of our insides."""
    assert response.status_code == status, response.text
    (key, error), *more = response.json().items()
    assert (key, more) == ("error", [])
    assert "Traceback" not in error
    for word in words:
        assert word in error
    return True
