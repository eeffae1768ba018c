"""A user's picture files in a style: their formats, metadata and names, and what may go wrong with each."""

import io
import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import has_magic
from itertools import groupby, islice, takewhile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import ExifTags, Image, ImageCms, ImageOps, UnidentifiedImageError
from torch import Tensor
from tqdm import tqdm

from tasks.errors import UserError
from tasks.style.apply.stylize import stylize
from tasks.style.transformer_net import MIN_SIDE_PX, TransformerNet

logger = logging.getLogger(__name__)

FORMATS: dict[str, dict[str, Any]] = {
    # Halved colour (4:2:0) bleeds over the edges of strokes; WebP has no other, but a way to bleed less.
    "JPEG": {"quality": 95, "subsampling": "4:4:4"},
    "PNG": {},
    "TIFF": {},
    "WEBP": {"quality": 95, "use_sharp_yuv": True},
}
"""Those that are read and written, by Pillow's names, with how."""
TIFF_COMPRESSIONS = ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate")
"""Those kept. Others are lossy, or for black and white alone."""
TIFF_TAGS = {
    *(ExifTags.Base.ImageDescription, ExifTags.Base.Make, ExifTags.Base.Model, ExifTags.Base.Software),
    *(ExifTags.Base.DateTime, ExifTags.Base.Artist, ExifTags.Base.Copyright, ExifTags.Base.Rating),
    *(ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo),
}
"""Those kept. Among a TIFF's are those of how its old pixels were laid out."""
STANDARD = "-"
"""Standard input or output."""


def stylize_files(
    network: TransformerNet,
    inputs: Sequence[str],
    output: Path,
    *,
    strength: float = 1.0,
    preserve_color: bool = False,
    batch_size: int = 1,
    force: bool = False,
    progress: bool = True,
) -> list[Path]:
    """Write each picture in the network's style to the directory `output`; return what was written.

    `inputs` are files, directories (with all below them) and glob patterns; files keep their names, and their
    directories below the input's. For `output` "-" there is one input, a file or "-", and the picture goes
    to standard output. A file keeps its format, size in pixels, opacity, resolution, colour profile and EXIF;
    pixels that EXIF would have turned are written upright. Pictures of one size that follow one another run
    as batches. `strength` and `preserve_color` are as in :func:`~tasks.style.apply.stylize.stylize`.

    Raises:
        UserError: before any work, where an input is missing, two would be written to one file, or one over
            an input or, without `force`, over any file; at the end, where pictures could not be read (the
            others are written by then); else where a file can't be written.
    """
    if batch_size < 1:
        raise UserError(f"batch_size is {batch_size}; it has to be 1 or more")
    if STANDARD in (*inputs, str(output)):
        _stylize_stream(network, inputs, output, strength, preserve_color)
        return []
    targets = _plan(inputs, output, force)
    failures: list[str] = []
    written: list[Path] = []
    with tqdm(total=len(targets), unit="picture", disable=not progress) as bar:
        readable = _readable(targets, failures, bar)
        for batch in _batches(readable, batch_size):
            pixels = torch.stack([picture.pixels for _, picture in batch])
            results = stylize(network, pixels, strength=strength, preserve_color=preserve_color)
            for (target, picture), result in zip(batch, results, strict=True):
                bar.update()
                try:
                    content = _encode(picture, result)
                except (
                    OSError,
                    ValueError,
                    RuntimeError,
                ) as error:  # metadata that Pillow can read, not write
                    failures.append(f"{targets[target]}: can't be written as {picture.format} ({error})")
                    continue
                _write(target, content)
                written.append(target)
    if failures:
        raise UserError(
            "\n".join([f"{len(failures)} of {len(targets)} pictures were not stylised:", *failures])
        )
    return written


@dataclass(frozen=True)
class _Picture:
    """A decoded file, upright."""

    pixels: Tensor
    """uint8, (3, H, W)."""
    alpha: Image.Image | None
    format: str
    options: dict[str, Any]
    """With which Pillow is to save it, metadata among them."""


def _stylize_stream(
    network: TransformerNet, inputs: Sequence[str], output: Path, strength: float, preserve_color: bool
) -> None:
    if len(inputs) != 1 or str(output) != STANDARD:
        raise UserError(
            f"{STANDARD} is for one picture: give it as the output, and {STANDARD} or one file as the input"
        )
    if Path(inputs[0]).is_dir():
        raise UserError(f"{inputs[0]}: is a directory; {STANDARD} is for one picture")
    if inputs[0] == STANDARD:
        picture = _decode(io.BytesIO(sys.stdin.buffer.read()), "standard input")
    else:
        picture = _decode(Path(inputs[0]), inputs[0])
    (result,) = stylize(network, picture.pixels[None], strength=strength, preserve_color=preserve_color)
    sys.stdout.buffer.write(_encode(picture, result))
    sys.stdout.buffer.flush()


def _plan(inputs: Sequence[str], output: Path, force: bool) -> dict[Path, Path]:
    """Files to read, by the file to write for each."""
    if output.exists() and not output.is_dir():
        raise UserError(f"{output}: is a file; give a directory to write to")
    sources: dict[Path, Path] = {}
    for text in inputs:
        files = expand(text, output, picture_suffixes())
        if not files:
            known = ", ".join(sorted(picture_suffixes()))
            raise UserError(f"{text}: no picture there ({known}); correct the path")
        for file, name in files:
            target = output / name
            if target in sources and not sources[target].samefile(file):
                raise UserError(
                    f"{sources[target]} and {file} would both be written to {target}; stylise them into "
                    "directories of their own, or rename one"
                )
            sources[target] = file
    existing = [target for target in sources if target.exists()]
    for target in existing:
        if any(target.samefile(file) for file in sources.values()):
            raise UserError(
                f"{target}: is an input and would be overwritten; choose another output directory"
            )
    if existing and not force:
        others = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
        raise UserError(
            f"{existing[0]}{others}: exists; give --force to overwrite, or another output directory"
        )
    return sources


def expand(text: str, output: Path, suffixes: Collection[str]) -> list[tuple[Path, Path]]:
    """The files that one input stands for, each with its name below the output.

    A file is itself. Of a directory (and all below it) or a glob pattern they are those with one of
    `suffixes`, but for hidden ones and results of an earlier run.
    """
    path = Path(text)
    if path.is_file():
        return [(path, Path(path.name))]
    base = path if path.is_dir() else Path(*takewhile(lambda part: not has_magic(part), path.parts))
    pattern = "**/*" if path.is_dir() else str(path.relative_to(base))
    found = base.glob(pattern) if has_magic(pattern) else ()
    files = sorted(
        file
        for file in found
        if file.suffix.lower() in suffixes
        and file.is_file()
        and not _is_hidden(file.relative_to(base))
        and not _is_result(file, output, base)
    )
    return [(file, file.relative_to(base)) for file in files]


def picture_suffixes() -> set[str]:
    """Of the files that are taken out of directories and patterns."""
    return {suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS}


def _is_hidden(file: Path) -> bool:
    """As thumbnails and the like are."""
    return any(part.startswith(".") for part in file.parts)


def _is_result(file: Path, output: Path, base: Path) -> bool:
    """Whether an earlier run wrote it, to a directory below the one that is read."""
    return output.resolve() != base.resolve() and output.resolve() in file.resolve().parents


def _readable(targets: dict[Path, Path], failures: list[str], bar: tqdm) -> Iterator[tuple[Path, _Picture]]:
    for target, file in targets.items():
        try:
            yield target, _decode(file, str(file))
        except UserError as error:
            failures.append(str(error))
            bar.update()


def _batches(
    pictures: Iterable[tuple[Path, _Picture]], batch_size: int
) -> Iterator[list[tuple[Path, _Picture]]]:
    for _, group in groupby(pictures, key=lambda item: item[1].pixels.shape):
        while batch := list(islice(group, batch_size)):
            yield batch


def _decode(source: Path | BinaryIO, name: str) -> _Picture:
    try:
        with Image.open(source) as image:
            _check(image, name)
            image.load()
            return _opened(image, name)
    except UserError:
        raise
    except Exception as error:  # damaged bytes: OSError, SyntaxError, ValueError, struct.error, zlib.error, …
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            reason = "empty, or no picture"
        raise UserError(f"{name}: can't be read as a picture ({reason}); replace or remove it") from error


def _check(image: Image.Image, name: str) -> None:
    file_format = image.format
    if file_format != "MPO" and getattr(image, "n_frames", 1) > 1:
        raise UserError(f"{name}: has several frames or pages; stylise a video, or each page as a file")
    if file_format != "MPO" and file_format not in FORMATS:
        raise UserError(f"{name}: is {file_format}; convert it to one of {', '.join(FORMATS)}")
    if min(image.size) < MIN_SIDE_PX:
        width, height = image.size
        raise UserError(f"{name}: is {width}x{height} px; sides have to be {MIN_SIDE_PX} or more")


def _opened(image: Image.Image, name: str) -> _Picture:
    # A telephone's MPO is a JPEG with more after it: a depth map, a second view.
    file_format = "JPEG" if image.format == "MPO" else str(image.format)
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "P":
        upright = upright.convert("RGBA" if upright.has_transparency_data else "RGB")
    alpha = upright.convert("RGBA").getchannel("A") if upright.has_transparency_data else None
    rgb, profile = _to_rgb(upright)
    options = FORMATS[file_format] | {"exif": _exif(image, name), "icc_profile": profile}
    if file_format == "TIFF":
        options["compression"] = _compression(image)
    if "dpi" in image.info:
        options["dpi"] = image.info["dpi"]
    return _Picture(torch.from_numpy(np.array(rgb)).permute(2, 0, 1), alpha, file_format, options)


def _compression(image: Image.Image) -> str:
    """For a TIFF like `image`. Of those with directories of EXIF, Pillow can only write plain ones."""
    if not {ExifTags.IFD.Exif, ExifTags.IFD.GPSInfo}.isdisjoint(image.getexif()):
        return "raw"
    compression = image.info.get("compression", "raw")
    return compression if compression in TIFF_COMPRESSIONS else "tiff_lzw"


def _exif(image: Image.Image, name: str) -> bytes:
    """Of pixels that are upright now. Without the thumbnail: it shows the photo."""
    exif = image.getexif()
    exif.pop(ExifTags.Base.Orientation, None)
    if image.format == "TIFF":
        for tag in set(exif) - TIFF_TAGS:
            del exif[tag]
    try:
        return exif.tobytes() if exif else b""
    except Exception as error:  # values of another type than their tags': struct.error, TypeError, …
        logger.warning("%s: its EXIF is damaged and left out (%s)", name, error)
        return b""


def _to_rgb(image: Image.Image) -> tuple[Image.Image, bytes | None]:
    """In RGB, and the profile that its values are in; of other colour spaces' profiles, in sRGB."""
    if image.mode == "F":
        raise ValueError("floating-point samples have no agreed white")
    if image.mode.startswith("I"):  # Pillow would clip 16 bits to 8
        grey = (np.asarray(image, np.float32) / 257).round().clip(0, 255)  # 65535 / 255
        image = Image.fromarray(grey.astype(np.uint8))
    icc = image.info.get("icc_profile")
    if icc is None:
        return image.convert("RGB"), None
    profile = ImageCms.ImageCmsProfile(io.BytesIO(icc))
    if profile.profile.xcolor_space.strip() == "RGB":
        return image.convert("RGB"), icc
    if image.mode == "LA":
        image = image.getchannel("L")
    converted = ImageCms.profileToProfile(image, profile, ImageCms.createProfile("sRGB"), outputMode="RGB")
    assert converted is not None  # as it is in place alone
    return converted, None


def _encode(picture: _Picture, result: Tensor) -> bytes:
    image = Image.fromarray(np.ascontiguousarray(result.permute(1, 2, 0).numpy()))
    if picture.alpha is not None:
        image.putalpha(picture.alpha)
    buffer = io.BytesIO()
    image.save(buffer, picture.format, **picture.options)
    return buffer.getvalue()


def _write(target: Path, content: bytes) -> None:
    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(content)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{target}: can't be written ({error.strerror})") from error
