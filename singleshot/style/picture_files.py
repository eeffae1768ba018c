"""Stylising of a user's picture files, still or animated, and of a picture on standard input."""

import errno
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tqdm import tqdm

from singleshot.errors import UserError, in_a_line
from singleshot.io.images import NamedBytes, Source, name_of, read_animation, read_picture
from singleshot.io.whole_file import whole_file
from singleshot.style.apply.regions import placed
from singleshot.style.apply.stylize import FULL_STYLE, StylizeSettings, check_size, stylize
from singleshot.style.transformer_net import TransformerNet
from singleshot.style.video.join import BeforeWriting
from singleshot.style.video.segments import stylized_film, torch_stylizer

OF_A_NAME = errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ  # other errors would meet all pictures


def stylize_pictures(
    network: TransformerNet,
    sources: Mapping[Path, Path],
    settings: StylizeSettings = FULL_STYLE,
    *,
    batch_size: int = 1,
    progress: bool = True,
    before: BeforeWriting | None = None,
) -> Iterator[Path]:
    """Write each picture in the network's style; `sources` are the files to read by those to write.

    Yields the files as they are written; `before` is called with each and with the whole one that is about to
    be moved there. A file keeps its format, size in pixels, opacity, resolution, colour profile and metadata;
    pixels that EXIF would have turned are written upright. The frames of an animated picture are a film,
    smoothed along its motion, and run in batches of `batch_size`.

    Raises:
        UserError: at once, if files can't be written; at the end, if pictures could not be read, or named.
    """
    failures: list[str] = []
    for target, file in tqdm(sources.items(), unit="picture", disable=not progress):
        try:
            content = _stylized(network, file, settings, batch_size)
        except Exception as error:  # of a decoder, an encoder, or for lack of memory
            failures.append(told(file, error))
            continue
        try:
            with whole_file(target) as whole:
                whole.write_bytes(content)
                if before:
                    before(target, whole)
        except OSError as error:
            failures.append(f"{target}: can't be written ({error.strerror})")
            if error.errno not in OF_A_NAME:
                raise UserError(failures[-1]) from error
            continue
        yield target
    if failures:
        raise UserError(
            "\n".join([f"{len(failures)} of {len(sources)} pictures were not stylised:", *failures])
        )


def told(file: Path, error: Exception) -> str:
    """The message about an input that failed, while others continue."""
    return str(error) if isinstance(error, UserError) else f"{file}: {in_a_line(error)}"


def stylize_stream(network: TransformerNet, file: Path | None, settings: StylizeSettings) -> None:
    """Stylise a picture file, or the picture on standard input (None), to standard output.

    Raises:
        UserError: the picture can't be read or encoded.
        OSError: standard output, which it names, is full or closed.
    """
    source = file or NamedBytes(sys.stdin.buffer.read(), "standard input")
    content = _stylized(network, source, settings, batch_size=1)
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except OSError as error:
        error.filename = "standard output"
        raise


def _stylized(network: TransformerNet, source: Source, settings: StylizeSettings, batch_size: int) -> bytes:
    name = name_of(source)
    encode: Callable[[], bytes]
    if animation := read_animation(source):
        height, width = animation.frames[0].shape[:2]
        check_size(width, height, name)
        film = stylized_film(animation.frames, torch_stylizer(network, settings), settings, batch_size)
        stored, encode = animation.stored, partial(animation.encode, film)
    else:
        picture = read_picture(source)
        height, width = picture.pixels.shape[1:]
        check_size(width, height, name)
        pixels = picture.pixels[None]
        (result,) = placed(pixels, stylize(network, pixels, settings), settings, name)
        stored, encode = picture.stored, partial(picture.encode, result)
    try:
        return encode()
    except Exception as error:  # damaged metadata: ValueError, struct.error, …
        raise UserError(f"{name}: can't be written as {stored.format} ({error})") from error
