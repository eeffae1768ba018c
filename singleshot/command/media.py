"""The pictures and videos for which a user's inputs stand, and the files of their results."""

import mimetypes
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from glob import has_magic
from itertools import takewhile
from pathlib import Path
from typing import Literal

from PIL import Image

from singleshot.errors import UserError, explained
from singleshot.io.images import picture_suffixes, written_format
from singleshot.style.video.join import stylized_name
from singleshot.style.video.reader import has_video

STANDARD = "-"
"""Standard input or output."""
VIDEOS = {
    *(".3gp", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".mxf"),
    *(".ogv", ".vob", ".webm", ".wmv"),
}
"""Suffixes of videos. `mimetypes` knows a third of them, and the others where the system lists them."""


@dataclass(frozen=True)
class Medium:
    """A picture or video among the inputs."""

    file: Path
    name: Path
    """Path of its result below the output directory, but for the style in the file's name."""
    kind: Literal["picture", "video"]


def find_media(inputs: Iterable[str], output: Path) -> tuple[list[Medium], list[str]]:
    """The pictures and videos that inputs stand for, each once; and lines on files that are left out.

    A file stands for itself. A directory (with all below it) or a glob pattern stands for its pictures and
    videos, except for hidden files and results of an earlier run in `output`. The content decides what a file
    is. If its content says nothing, its suffix decides, so that a damaged one is reported.

    Raises:
        UserError: an input is missing, an invalid pattern, or `output`, or has no picture and no video.
    """
    media: list[Medium] = []
    lines = []
    for text in inputs:
        path = Path(text)
        if path.is_file():
            media.append(_medium(path, Path(path.name)) or Medium(path, Path(path.name), "picture"))
            continue
        base, files = _files(text, output)
        found = {file: _medium(file, file.relative_to(base)) for file in files}
        if not any(found.values()):
            raise UserError(f"{text}: no such picture or video; correct the path")
        media += [medium for medium in found.values() if medium]
        if others := [file.name for file, medium in found.items() if not medium]:
            named = f"{', '.join(others[:5])}{', …' * (len(others) > 5)}"
            what = "what isn't a picture or video, or can't be opened"
            lines.append(f"{text}: left out {what}: {len(others)} ({named})")
    return list({(medium.file.resolve(), medium.name): medium for medium in media}.values()), lines


def _files(text: str, output: Path) -> tuple[Path, list[Path]]:
    """The files of a directory or pattern, and the directory below which results keep their tree."""
    path = Path(text)
    base = path if path.is_dir() else Path(*takewhile(lambda part: not has_magic(part), path.parts))
    pattern = "**/*" if path.is_dir() else str(path.relative_to(base))
    if output.resolve() == base.resolve():
        raise UserError(f"{text}: its folder is also the output; give another output directory")
    with explained(text, "correct the path", ValueError):  # no such pattern, such as **.jpg
        found = base.glob(pattern) if has_magic(pattern) else ()
        return base, sorted(
            file
            for file in found
            if os.access(file, os.F_OK)  # unlike what is in a locked folder, which is told itself
            and (file.is_file() or (file.is_dir() and not os.access(file, os.R_OK | os.X_OK)))
            and not any(part.startswith(".") for part in file.relative_to(base).parts)  # as thumbnails are
            and output.resolve() not in (file.resolve(), *file.resolve().parents)
        )


def _medium(file: Path, name: Path) -> Medium | None:
    if picture := written_format(file):
        with file.open("rb") as content:
            only_read = picture == "PNG" and content.read(4) != b"\x89PNG"
        return Medium(file, name.with_suffix(".png") if only_read else name, "picture")
    suffix = file.suffix.lower()
    if suffix in VIDEOS or has_video(file):
        return Medium(file, name.with_name(stylized_name(file)), "video")
    return Medium(file, name, "picture") if _is_pictures(suffix) else None


def _is_pictures(suffix: str) -> bool:
    media_type = mimetypes.guess_type(f"file{suffix}")[0] or ""
    return suffix in picture_suffixes() or media_type.startswith("image/")


def plan_targets(media: Sequence[Medium], output: Path, style: str) -> tuple[dict[Path, Medium], list[str]]:
    """The pictures and videos by the files that are to be written: in `output`, named with the style.

    An output that is called like a picture or a video is the file of the only one. The lines are about those
    that have no place, as they would be written to one file, or have too long a name.

    Raises:
        UserError: the output isn't a directory or can't be this picture's file, or a result would be written
            over an input.
    """
    suffix = output.suffix.lower()
    to_file = (suffix in VIDEOS or _is_pictures(suffix)) and not output.is_dir()
    if to_file:
        _check_file(media, output)
    inputs = {medium.file.resolve() for medium in media}
    targets: dict[Path, list[Medium]] = {}
    lines = []
    for medium in media:
        target = output if to_file else output / medium.name.with_stem(f"{medium.name.stem}-{style}")
        if len(os.fsencode(target.name)) > 255:  # Linux has no longer ones
            lines.append(f"{target}: such a long name is none; rename {medium.file}")
            continue
        nearest = next(path for path in target.parents if path.exists())
        if not nearest.is_dir():
            raise UserError(f"{nearest}: is a file; give a directory to write to")
        if target.resolve() in inputs:
            raise UserError(f"{target}: is an input and would be overwritten; give another output directory")
        targets.setdefault(target, []).append(medium)
    lines += [
        f"{' and '.join(str(medium.file) for medium in some)} would both be {target}; stylise them "
        "into directories of their own, or rename one"
        for target, some in targets.items()
        if len(some) > 1
    ]
    return {target: some[0] for target, some in targets.items() if len(some) == 1}, lines


def _check_file(media: Sequence[Medium], output: Path) -> None:
    """Check that `output` can be the file of the only picture or video; for videos, the muxer checks it."""
    if len(media) > 1:
        raise UserError(f"{output}: is a file's name, for {len(media)} results; give a directory to write to")
    (medium,) = media
    kept = written_format(medium.file)
    if kept and Image.registered_extensions().get(output.suffix.lower()) != kept:
        fit = output.with_suffix(f".{kept.lower()}")
        raise UserError(f"{output}: the result of {medium.file} is a {kept}; name it {fit}")
