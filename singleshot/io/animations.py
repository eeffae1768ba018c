"""Animated pictures (GIF, WebP, APNG, AVIF): frame by frame as a viewer shows them, and written again."""

import io
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from PIL import Image

from singleshot.io.images import (
    WRITTEN,
    Frame,
    Source,
    StoredAs,
    is_animated,
    name_of,
    open_picture,
    stored_as,
    visible,
)

UNTIMED_MS = 100
"""How long browsers show a frame for which a file states no time, or too short a one to be meant."""
SHORTEST_MS = 10


@dataclass(frozen=True)
class Animation:
    """An animated picture with whole frames, though files may hold only what differs from frame to frame."""

    frames: list[Frame]
    """Colours in sRGB. Where nothing is visible, those around it go on."""
    alphas: list[Image.Image | None]
    """Opacity (mode L) of each frame; None if it is opaque."""
    milliseconds: list[int]
    """How long each frame is shown."""
    loops: int | None
    """How often it is shown; 0 for ever, None if the file doesn't say."""
    stored: StoredAs

    def encode(self, frames: Iterable[Frame]) -> bytes:
        """A file of as many other frames, with this one's format, times, opacity, colours and metadata."""
        pictures = [
            self.stored.image(torch.from_numpy(frame).permute(2, 0, 1), alpha)
            for frame, alpha in zip(frames, self.alphas, strict=True)
        ]
        if self.stored.format == "WEBP" and any(self.alphas):
            return _transparent_webp(pictures, self)
        options = self.stored.options | {"duration": self.milliseconds}
        if self.loops is not None:
            options["loop"] = self.loops
        if self.stored.format in ("GIF", "PNG") and any(self.alphas):
            options["disposal"] = 2 if self.stored.format == "GIF" else 1  # clear what was there before
        buffer = io.BytesIO()
        pictures[0].save(buffer, self.stored.format, save_all=True, append_images=pictures[1:], **options)
        return buffer.getvalue()


def read_animation(source: Source) -> Animation | None:
    """Read an animated picture; None if the file has a still one.

    Raises:
        UserError: the file is missing, damaged, or of no format that is read.
    """
    with open_picture(source) as picture:
        if not is_animated(picture):
            return None
        frames, alphas, milliseconds = [], [], []
        for number in range(getattr(picture, "n_frames", 1)):
            picture.seek(number)
            picture.load()
            frame, alpha = visible(picture)
            if number == 0:
                loops, stored = picture.info.get("loop"), stored_as(picture, name_of(source))
            frames.append(frame)
            alphas.append(alpha)
            stated = round(picture.info.get("duration", 0))
            milliseconds.append(stated if stated >= SHORTEST_MS else UNTIMED_MS)
    return Animation(frames, alphas, milliseconds, loops, stored)


def _transparent_webp(pictures: Sequence[Image.Image], animation: Animation) -> bytes:
    """An animated WebP of whole frames with their opacity, which Pillow 13 loses."""
    icc, exif, xmp = (animation.stored.options.get(key) for key in ("icc_profile", "exif", "xmp"))
    flags = 0x12 | 0x20 * bool(icc) | 0x08 * bool(exif) | 0x04 * bool(xmp)
    width, height = ((side - 1).to_bytes(3, "little") for side in pictures[0].size)
    chunks = [(b"VP8X", bytes([flags, 0, 0, 0]) + width + height), (b"ICCP", icc)]
    chunks.append((b"ANIM", struct.pack("<IH", 0, animation.loops or 0)))
    for picture, milliseconds in zip(pictures, animation.milliseconds, strict=True):
        still = io.BytesIO()
        picture.save(still, "WEBP", **WRITTEN["WEBP"])
        content = still.getvalue()[12:]
        content = content[18:] if content.startswith(b"VP8X") else content
        time = milliseconds.to_bytes(3, "little")
        chunks.append((b"ANMF", bytes(6) + width + height + time + b"\x02" + content))  # 2: replaces all
    body = b"".join(
        name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)
        for name, content in [*chunks, (b"EXIF", exif), (b"XMP ", xmp)]
        if content
    )
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body
