"""Stylising of a user's picture files, still or animated, and of a picture on standard input."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path

import torch
from tqdm import tqdm

from singleshot.errors import UserError
from singleshot.io.images import (
    Animation,
    NamedBytes,
    Picture,
    Source,
    StoredAs,
    name_of,
    read_animation,
    read_picture,
)
from singleshot.io.whole_file import whole_file
from singleshot.style.apply.regions import placed
from singleshot.style.apply.stylize import FULL_STYLE, StylizeSettings, check_size, stylize
from singleshot.style.transformer_net import TransformerNet
from singleshot.style.video.segments import stylized_film, torch_stylizer

Target = tuple[Path, Picture]
"""A file to write, and the picture whose stylised version it will hold."""


def stylize_pictures(
    network: TransformerNet,
    sources: Mapping[Path, Path],
    settings: StylizeSettings = FULL_STYLE,
    *,
    batch_size: int = 1,
    progress: bool = True,
) -> list[Path]:
    """Write each picture in the network's style; `sources` are the files to read by those to write.

    Returns the files written. A file keeps its format, size in pixels, opacity, resolution, colour profile
    and metadata; pixels that EXIF would have turned are written upright. Consecutive still pictures of one
    size run as batches. The frames of an animated picture are a film: smoothed along its motion.

    Raises:
        UserError: at once, if a file can't be written; at the end, if pictures could not be read.
    """
    if batch_size < 1:
        raise UserError(f"batch_size is {batch_size}; it has to be 1 or more")
    failures: list[str] = []
    written: list[Path] = []
    with tqdm(total=len(sources), unit="picture", disable=not progress) as bar:

        def readable() -> Iterator[Target]:
            """Yield still pictures. Animated ones are written in passing."""
            for target, file in sources.items():
                try:
                    animation = read_animation(file)
                    picture = None if animation else _read(file)
                    content = _film(network, animation, settings, batch_size, file) if animation else b""
                except UserError as error:
                    failures.append(str(error))
                    bar.update()
                    continue
                if picture:
                    yield target, picture
                else:
                    written.append(_write(target, content))
                    bar.update()

        for batch in _batches(readable(), batch_size):
            pictures = torch.stack([picture.pixels for _, picture in batch])
            results = placed(pictures, stylize(network, pictures, settings), settings)
            for (target, picture), result in zip(batch, results, strict=True):
                bar.update()
                try:
                    content = _encoded(picture.stored, sources[target], lambda: picture.encode(result))  # noqa: B023
                except UserError as error:
                    failures.append(str(error))
                else:
                    written.append(_write(target, content))
    if failures:
        raise UserError(
            "\n".join([f"{len(failures)} of {len(sources)} pictures were not stylised:", *failures])
        )
    return written


def stylize_stream(network: TransformerNet, file: Path | None, settings: StylizeSettings) -> None:
    """Stylise a picture file, or the picture on standard input (None), to standard output.

    Raises:
        UserError: the picture can't be read or written.
    """
    source = file or NamedBytes(sys.stdin.buffer.read(), "standard input")
    if animation := read_animation(source):
        content = _film(network, animation, settings, 1, source)
    else:
        picture = _read(source)
        pixels = picture.pixels[None]
        (result,) = placed(pixels, stylize(network, pixels, settings), settings)
        content = _encoded(picture.stored, source, lambda: picture.encode(result))
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _read(source: Source) -> Picture:
    picture = read_picture(source)
    check_size(picture.pixels.shape[2], picture.pixels.shape[1], name_of(source))
    return picture


def _film(
    network: TransformerNet, animation: Animation, settings: StylizeSettings, batch_size: int, source: Source
) -> bytes:
    height, width = animation.frames[0].shape[:2]
    check_size(width, height, name_of(source))
    film = stylized_film(animation.frames, torch_stylizer(network, settings), settings, batch_size)
    return _encoded(animation.stored, source, lambda: animation.encode(film))


def _encoded(stored: StoredAs, source: Source, encode: Callable[[], bytes]) -> bytes:
    try:
        return encode()
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{name_of(source)}: can't be written as {stored.format} ({error})") from error


def _write(target: Path, content: bytes) -> Path:
    try:
        with whole_file(target) as file:
            file.write_bytes(content)
    except OSError as error:
        raise UserError(f"{target}: can't be written ({error.strerror})") from error
    return target


def _batches(pictures: Iterable[Target], batch_size: int) -> Iterator[list[Target]]:
    for _, group in groupby(pictures, key=lambda item: item[1].pixels.shape):
        while batch := list(islice(group, batch_size)):
            yield batch
