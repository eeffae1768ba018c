"""Results for clients' pictures, computed in a separate process, which the request's time limit kills.

Decoders have no limits of their own: a JPEG of some megabytes can keep libjpeg busy for minutes. The server's
processes import this module, but what its functions need (PyTorch) only in the other process.
"""

import asyncio
import functools
import io
import logging
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, TypeVarTuple

from starlette.exceptions import HTTPException

from singleshot.errors import UserError, explained
from singleshot.io.onnx_model import OnnxModel, load_onnx
from singleshot.io.own_process import OwnProcess, ProcessFailed, TookTooLong
from singleshot.serving.config import ServingConfig

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)
DECODING_S = 10
"""Time for the decoding of a picture, in seconds: a JPEG of many scans takes minutes, others one second."""
READ = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/webp": "WEBP",
    "image/heic": "HEIF",
    "image/avif": "AVIF",
    "image/gif": "GIF",
    "image/bmp": "BMP",
}
"""Media types that phones, cameras and browsers make, with Pillow's names of their formats. Each further
decoder would be exposed to clients' bytes, too."""
Given = TypeVarTuple("Given")
Result = TypeVar("Result")


class PictureProcess:
    """The process for pictures, which computes one at a time, and those that wait for it.

    So memory is bounded by the largest picture, and several at once would not be faster.
    """

    def __init__(self, config: ServingConfig) -> None:
        self._config, self._asked = config, 0
        self._process, self._thread = OwnProcess(), ThreadPoolExecutor(1)

    async def __call__(self, due: float, function: Callable[[*Given], Result], *given: *Given) -> Result:
        """What a function of this module returns, before :func:`time.monotonic` is `due`.

        Raises:
            HTTPException: the function's, 503 if too many wait or the process ends, or 504.
        """
        if self._asked >= self._config.max_pictures:
            error = f"{self._asked} pictures are in progress; try again"
            raise HTTPException(503, error, {"Retry-After": "1"})
        self._asked += 1
        try:
            loop, call = asyncio.get_running_loop(), functools.partial(function, *given)
            result: Result | HTTPException = await loop.run_in_executor(
                self._thread, lambda: self._process.call(due - time.monotonic(), _answer, call)
            )
        except TookTooLong:
            raise HTTPException(504, f"no answer in {self._config.timeout_s:g} seconds") from None
        except ProcessFailed as failed:
            self.begin()
            if str(failed).startswith(f"killed by {signal.SIGALRM.name}"):
                raise HTTPException(422, f"it takes more than {DECODING_S} seconds to decode") from None
            log.warning("the process for pictures: %s", failed)
            raise HTTPException(503, "the picture wasn't computed; try again", {"Retry-After": "1"}) from None
        except UserError as error:
            log.warning("%s", error)
            raise HTTPException(503, "the network's file can't be read; try again") from None
        finally:
            self._asked -= 1
        if isinstance(result, HTTPException):
            raise result
        return result

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._process.kill()

    def begin(self) -> None:
        """Import what the functions need, in ten minutes at most, before the first picture comes."""
        self._thread.submit(self._process.call, 600, exec, "import singleshot.style.apply.strokes")


def _answer(function: Callable[[], Result]) -> Result | HTTPException:
    try:
        return function()
    except HTTPException as refusal:
        return refusal


def stylize(
    graph: Path, body: bytes, max_pixels: int, threads: int, settings: Mapping[str, Any], jpeg: bool
) -> bytes:
    """Stylise the file of a picture with a graph; returns a JPEG or PNG file.

    Raises:
        HTTPException: the file isn't a picture, the picture has a wrong size, or a setting has a wrong value.
    """
    import torch

    from singleshot.io.images import encode_jpeg, encode_png
    from singleshot.style.apply.regions import placed
    from singleshot.style.apply.strokes import with_strokes
    from singleshot.style.apply.stylize import StylizeSettings, finished
    from singleshot.style.apply.tiling import to_float
    from singleshot.style.transformer_net import MIN_SIDE_PX

    try:
        asked = StylizeSettings(**settings)
    except UserError as error:
        raise HTTPException(422, str(error)) from None
    network = _network(graph, threads)
    picture = _decode(body, max_pixels, MIN_SIDE_PX)[None].mul(255).round().byte()

    def draw(small: "Tensor") -> "Tensor":
        pictures = to_float(small).numpy()
        return torch.from_numpy(network.compute("stylised", pictures.shape, pictures=pictures))

    result = finished(picture, with_strokes(picture, asked.stroke, draw), asked)
    (answer,) = placed(picture, result, asked)
    return encode_jpeg(answer / 255) if jpeg else encode_png(answer / 255)


def classify(
    graph: Path, body: bytes, max_pixels: int, threads: int, preparation: Literal["right", "reported"]
) -> list[tuple[str, float]]:
    """The most probable classes of a picture, given as a file, each with its probability.

    Raises:
        HTTPException: the file isn't a picture, or the picture is too large.
    """
    import torch

    from singleshot.export.classifier import CARDS, PREPARATIONS, top

    network = _network(graph, threads)
    with explained(f"{graph}: not a classifier's graph", "export it again"):
        card = CARDS.validate_python(network.card.details)
    prepared = PREPARATIONS[preparation](_decode(body, max_pixels), card.preprocessing)
    (logits,) = network.compute("logits", (1, len(card.labels)), pictures=prepared[None].numpy())
    return top(torch.from_numpy(logits), card.labels)


def _decode(body: bytes, max_pixels: int, min_side: int = 1) -> "Tensor":
    from singleshot.io.images import read_rgb, read_size

    formats = tuple(READ.values())
    signal.alarm(DECODING_S)  # which ends the process: no handler runs before a decoder returns
    try:
        # The header is enough, so a decompression bomb (a small file of a huge picture) does no harm.
        width, height = read_size(io.BytesIO(body), formats)
        if width * height > max_pixels:
            raise HTTPException(413, f"{width}x{height} pixels; at most {max_pixels} are accepted")
        if min(width, height) < min_side:
            raise HTTPException(422, f"{width}x{height} pixels; sides have to be {min_side} or more")
        return read_rgb(io.BytesIO(body), formats=formats)
    except UserError as error:
        raise HTTPException(422, f"{error}; known are {', '.join(READ)}") from None
    finally:
        signal.alarm(0)


@functools.cache
def _network(graph: Path, threads: int) -> OnnxModel:
    import torch

    # In MKL's functions, too: tanh of 64 numbers takes 24 ms on all cores if another process uses one.
    torch.set_num_threads(threads)
    return load_onnx(graph, threads, give_back_memory=True)
