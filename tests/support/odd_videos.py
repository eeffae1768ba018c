"""Small videos of every kind that people have, whose frames say which one they are."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.video.frame import VideoFrame
from numpy.typing import NDArray

NTSC = Fraction(30000, 1001)
Frame = NDArray[np.uint8]


def numbered(number: int, width: int = 64, height: int = 48) -> Frame:
    """A frame (height, width, 3) with its number in binary: stripes, white or black, the lowest on the left.

    Below them three patches, red to the left, to see what is up and what was done to colours.
    """
    frame = np.full((height, width, 3), 128, np.uint8)
    stripe = width // 8
    for bit in range(8):
        frame[: height // 2, bit * stripe : (bit + 1) * stripe] = 255 * (number >> bit & 1)
    third = width // 3
    for i, color in enumerate(((220, 40, 40), (40, 200, 60), (50, 60, 210))):
        frame[height // 2 + 4 :, i * third : (i + 1) * third] = color
    return frame


def number_of(frame: Frame) -> int:
    """Which frame it is, after any encoding."""
    height, width = frame.shape[:2]
    stripe = width // 8
    middles = frame[height // 4, stripe // 2 : 8 * stripe : stripe].mean(axis=-1)
    return sum(int(middle > 128) << bit for bit, middle in enumerate(middles))


def make_video(
    path: Path,
    frames: int = 30,
    size: tuple[int, int] = (64, 48),
    rate: Fraction = NTSC,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    options: dict[str, str] | None = None,
    times: Sequence[int] | None = None,
    rotation: int = 0,
    mirrored: bool = False,
    sound: Sequence[str] = (),
    sound_start: Fraction = Fraction(0),
    video_start: int = 0,
) -> Path:
    """Write a video with frames 0, 1, 2, …; `times` are milliseconds, `video_start` frames.

    `rotation` is what players shall do, anticlockwise. One track of sound for each codec in `sound`.
    """
    container_options = {"movflags": "faststart"} if path.suffix in (".mp4", ".mov") else {}
    with av.open(path, "w", options=container_options) as container:
        stream = container.add_stream(codec, rate=rate, options={"g": "12"} | (options or {}))
        stream.width, stream.height = size
        stream.pix_fmt = pix_fmt
        if rotation or mirrored:
            stream.set_display_rotation(rotation, hflip=mirrored)
        if times:
            stream.codec_context.time_base = Fraction(1, 1000)
        duration = Fraction(times[-1] + 40, 1000) if times else frames / rate
        tracks = [container.add_stream(name, rate=48000, layout="mono") for name in sound]
        for n in range(frames):
            frame = VideoFrame.from_ndarray(numbered(n, *size))
            frame.pts = times[n] if times else n + video_start
            frame.time_base = Fraction(1, 1000) if times else 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        for pitch, track in zip((440, 660), tracks, strict=False):
            samples = np.arange(int(duration * 48000))
            wave = (0.2 * np.sin(2 * np.pi * pitch * samples / 48000)).astype(np.float32)
            for start in range(0, len(wave), 960):
                chunk = AudioFrame.from_ndarray(wave[None, start : start + 960], format="fltp", layout="mono")
                chunk.sample_rate = 48000
                chunk.pts, chunk.time_base = start + int(sound_start * 48000), Fraction(1, 48000)
                container.mux(track.encode(chunk))
            container.mux(track.encode(None))
    return path
