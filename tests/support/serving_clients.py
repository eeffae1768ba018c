"""Requests as clients make them, a configuration small enough for a test, and the server as users run it."""

import io
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
from PIL import Image
from ports import free_port
from small_graphs import write_all
from waiting import PATIENCE_S

from singleshot.serving.config import ServingConfig

MAX_BODY = 300_000
PROGRAM = """
from pathlib import Path
from singleshot.serving.config import ServingConfig
from singleshot.serving.server import serve_forever

if __name__ == "__main__":
    {before}
    serve_forever({config!r}, Path({directory!r}))
"""


def serving_config(**changes):
    given = {
        "host": "127.0.0.1",
        "port": free_port(),
        "root_path": "",
        "names": (),
        "workers": 1,
        "num_cpus": 0.5,
        "timeout_s": PATIENCE_S,
        "max_connections": 500,
        "max_pictures": 32,
        "max_body_mb": MAX_BODY / 1e6,
        "stylize_pixels": 40_000,
        "classify_pixels": 1_000_000,
    }
    return ServingConfig(**given | changes)


@contextmanager
def serving(directory, before="", environment=(), **changes):
    """The address, the process, and the file of its standard error."""
    write_all(directory / "onnx")
    config = serving_config(**changes)
    program, log = directory / "program.py", directory / "log.txt"
    program.write_text(PROGRAM.format(before=before, config=config, directory=str(directory / "onnx")))
    environment = os.environ | {"PYTHONPATH": f"{Path.cwd()}:{directory}"} | dict(environment)
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout.readline().startswith(
            b"serving styles: 1, policies: 2, classifiers: 1 at http://"
        )
        try:
            yield f"http://127.0.0.1:{config.port}", psutil.Process(process.pid), log
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0


def workers(process):
    """The processes that answer: those with a connection or a listener on the port."""
    found = []
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            found += [child] if child.net_connections("tcp") else []
    return found


def photo(height=60, width=72, seed=0, file_format="PNG"):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, file_format)
    return buffer.getvalue()


def endless_jpeg():
    """A JPEG of one megapixel with 600,000 scans of nothing, in 7 MB, which libjpeg decodes for minutes."""
    buffer = io.BytesIO()
    Image.new("RGB", (1000, 1000)).save(buffer, "JPEG", progressive=True)
    scan = bytes.fromhex("ffda000801010001 3f000000")
    return buffer.getvalue().removesuffix(b"\xff\xd9") + scan * 600_000 + b"\xff\xd9"


def pixels_of(content):
    return np.asarray(Image.open(io.BytesIO(content)))


def refused(response, status, *words):
    """One line of JSON that says why, and nothing of our insides."""
    assert response.status_code == status, response.text
    (key, error), *more = response.json().items()
    assert (key, more) == ("error", [])
    assert "Traceback" not in error
    for word in words:
        assert word in error
    return True
