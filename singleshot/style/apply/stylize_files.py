"""Stylising of a user's picture files, from files or standard input to files or standard output."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from singleshot.errors import UserError
from singleshot.io.images import NamedBytes
from singleshot.io.whole_file import whole_file
from singleshot.style.apply.input_files import STANDARD, plan_files
from singleshot.style.apply.picture_files import PictureFile, picture_suffixes, read_picture
from singleshot.style.apply.stylize import FULL_STYLE, StylizeSettings, stylize
from singleshot.style.transformer_net import TransformerNet

Target = tuple[Path, PictureFile]
"""A file to write, and the picture whose stylised version it will hold."""


def stylize_files(
    network: TransformerNet,
    inputs: Sequence[str],
    output: Path,
    settings: StylizeSettings = FULL_STYLE,
    *,
    batch_size: int = 1,
    force: bool = False,
    progress: bool = True,
) -> list[Path]:
    """Write each picture in the network's style to the directory `output`; return the files written.

    `inputs` are files, directories (with all below them) and glob patterns. Files keep their names, and their
    directories below the input's. If `output` is "-", there is one input, a file or "-", and the picture goes
    to standard output. A file keeps its format, size in pixels, opacity, resolution, colour profile and EXIF;
    pixels that EXIF would have turned are written upright. Consecutive pictures of one size run as batches.

    Raises:
        UserError: before any work, if an input is missing, if two results would be written to one file, or a
            result over an input or, without `force`, over any file; at the end, if pictures could not be
            read (the others are written by then); at any time, if a file can't be written.
    """
    if batch_size < 1:
        raise UserError(f"batch_size is {batch_size}; it has to be 1 or more")
    if STANDARD in (*inputs, str(output)):
        _stylize_stream(network, inputs, output, settings)
        return []
    sources = plan_files(inputs, output, picture_suffixes(), force)
    failures: list[str] = []
    written: list[Path] = []
    with tqdm(total=len(sources), unit="picture", disable=not progress) as bar:
        for batch in _batches(_readable(sources, failures, bar), batch_size):
            pixels = torch.stack([picture.pixels for _, picture in batch])
            for (target, picture), result in zip(batch, stylize(network, pixels, settings), strict=True):
                bar.update()
                try:
                    content = _encoded(picture, result, str(sources[target]))
                except UserError as error:
                    failures.append(str(error))
                    continue
                _write(target, content)
                written.append(target)
    if failures:
        raise UserError(
            "\n".join([f"{len(failures)} of {len(sources)} pictures were not stylised:", *failures])
        )
    return written


def _stylize_stream(
    network: TransformerNet, inputs: Sequence[str], output: Path, settings: StylizeSettings
) -> None:
    if len(inputs) != 1 or str(output) != STANDARD:
        raise UserError(
            f"{STANDARD} is for one picture: give it as the output, and {STANDARD} or one file as the input"
        )
    if Path(inputs[0]).is_dir():
        raise UserError(f"{inputs[0]}: is a directory; {STANDARD} is for one picture")
    if inputs[0] == STANDARD:
        picture = read_picture(NamedBytes(sys.stdin.buffer.read(), "standard input"))
    else:
        picture = read_picture(Path(inputs[0]))
    (result,) = stylize(network, picture.pixels[None], settings)
    sys.stdout.buffer.write(_encoded(picture, result, inputs[0]))
    sys.stdout.buffer.flush()


def _encoded(picture: PictureFile, result: Tensor, name: str) -> bytes:
    try:
        return picture.encode(result)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{name}: can't be written as {picture.format} ({error})") from error


def _readable(sources: dict[Path, Path], failures: list[str], bar: tqdm) -> Iterator[Target]:
    for target, file in sources.items():
        try:
            yield target, read_picture(file)
        except UserError as error:
            failures.append(str(error))
            bar.update()


def _batches(pictures: Iterable[Target], batch_size: int) -> Iterator[list[Target]]:
    for _, group in groupby(pictures, key=lambda item: item[1].pixels.shape):
        while batch := list(islice(group, batch_size)):
            yield batch


def _write(target: Path, content: bytes) -> None:
    try:
        with whole_file(target) as file:
            file.write_bytes(content)
    except OSError as error:
        raise UserError(f"{target}: can't be written ({error.strerror})") from error
