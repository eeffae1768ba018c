"""Task: a video of our own where no other is given: a slow pan and zoom over a photo, with a tone."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import av
import cv2
import numpy as np
from annotated_types import Ge, Gt
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.packet import Packet
from numpy.typing import NDArray
from torch import Tensor

from singleshot.errors import UserError
from singleshot.io.h264 import VideoFormat, add_h264, address, encode, mux
from singleshot.io.images import Frame
from singleshot.job import Job, per_job
from singleshot.style.datasets.photos import PhotoSet

CLIP = "clip.mp4"

ZOOM = 1.3
"""How much larger the photo is in the last frame than in the first."""
SAMPLE_RATE = 48_000
PITCH_HZ, LOUDNESS = 220.0, 0.1
"""Of the tone; a loudness of 1 is full scale."""
AAC_SAMPLES = 1024
"""Number of samples in a packet."""


@dataclass(frozen=True)
class ClipParams:
    """Parameters that the clip depends on, besides the photos."""

    photo: str
    """Name of the photo in the :class:`PhotoSet`."""
    seconds: Annotated[float, Gt(0)] = 4.0
    width: Annotated[int, Ge(16)] = 320
    height: Annotated[int, Ge(16)] = 240
    fps: str = "30000/1001"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-9]\d*(/[1-9]\d*)?", self.fps):
            raise UserError(f"clip.fps is {self.fps!r}; it has to be a ratio, such as 25 or 30000/1001")


@per_job
def fetch_clip(job: Job) -> None:
    """Make a job's clip (:class:`ClipParams`).

    Input: `photos`, a directory for :meth:`PhotoSet.open`. The output gets `clip.mp4` (:func:`make_clip`).
    """
    params: ClipParams = job.params
    photo = PhotoSet.open(job.inputs["photos"]).read(params.photo)
    make_clip(photo, job.output / CLIP, params.seconds, Fraction(params.fps), (params.width, params.height))


def make_clip(photo: Tensor, path: Path, seconds: float, frame_rate: Fraction, size: tuple[int, int]) -> None:
    """Write an MP4 of `seconds`, a frame at least, in which a camera moves over a photo (3, H, W).

    `size` is width and height in pixels. The sound, in AAC, is as long as the video. Equal arguments give
    equal bytes.
    """
    width, height = size
    frames = max(1, round(seconds * frame_rate))
    with av.open(address(path), "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        video = add_h264(container, VideoFormat(width, height, str(frame_rate)))
        audio = container.add_stream("aac", rate=SAMPLE_RATE, layout="mono")
        samples = np.arange(round(frames / frame_rate * SAMPLE_RATE))
        sound = (LOUDNESS * np.sin(2 * np.pi * PITCH_HZ / SAMPLE_RATE * samples)).astype(np.float32)
        mux(container, encode(video, pan_and_zoom(photo, frames, size)), _encode_sound(audio, sound))


def pan_and_zoom(photo: Tensor, frames: int, size: tuple[int, int]) -> Iterator[Frame]:
    """Frames (height, width, 3) of a zoom into a photo (3, H, W), first as much of it as fills the frame.

    The camera starts and stops softly. It moves by fractions of a pixel, since whole ones would shake the
    picture.
    """
    pixels = (photo.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    height, width = pixels.shape[:2]
    # The photo gets the size that it has in the last frame, so that no frame enlarges it, and none shrinks it
    # by more than ZOOM: shrinking without a filter makes fine detail flicker.
    factor = ZOOM * max(size[0] / width, size[1] / height)
    enlarged = math.ceil(width * factor), math.ceil(height * factor)
    larger = cv2.resize(pixels, enlarged, interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC)
    for n in range(frames):
        t = (1 - math.cos(math.pi * n / max(frames - 1, 1))) / 2
        scale = ZOOM ** (1 - t)  # pixels of the photo per pixel of the frame
        # Of the part outside the frame, a third is on the left (at the top) at first, two thirds in the end.
        left, top = ((1 + t) / 3 * (have - scale * need) for have, need in zip(enlarged, size, strict=True))
        centre = (scale - 1) / 2  # the frame's first pixel shows the middle of a patch
        to_photo = np.array([[scale, 0, left + centre], [0, scale, top + centre]])
        yield cv2.warpAffine(
            larger,
            to_photo,
            size,
            flags=cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        ).astype(np.uint8, copy=False)


def _encode_sound(stream: AudioStream, sound: NDArray[np.float32]) -> Iterator[Packet]:
    for start in range(0, len(sound), AAC_SAMPLES):
        frame = AudioFrame.from_ndarray(
            sound[None, start : start + AAC_SAMPLES], format="fltp", layout="mono"
        )
        frame.sample_rate, frame.pts, frame.time_base = SAMPLE_RATE, start, Fraction(1, SAMPLE_RATE)
        yield from stream.encode(frame)
    yield from stream.encode(None)
