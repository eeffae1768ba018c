"""The files that a user's inputs stand for, and where their results go."""

import mimetypes
from collections.abc import Collection, Sequence
from glob import has_magic
from itertools import takewhile
from pathlib import Path

from singleshot.errors import UserError

STANDARD = "-"
"""Standard input or output."""


def plan_files(
    inputs: Sequence[str], output: Path, suffixes: Collection[str], force: bool
) -> dict[Path, Path]:
    """Map each file to write to the file to read for it.

    Raises:
        UserError: the output is no directory, an input is missing, two results would be written to one file,
            or a result over an input or, without `force`, over any file.
    """
    check_directory(output)
    sources: dict[Path, Path] = {}
    for text in inputs:
        files = expand(text, output, suffixes)
        if not files:
            raise nothing_found(text, suffixes)
        for file, name in files:
            target = output / name
            if target in sources and not sources[target].samefile(file):
                raise UserError(
                    f"{sources[target]} and {file} would both be written to {target}; stylise them into "
                    "directories of their own, or rename one"
                )
            sources[target] = file
    existing = [target for target in sources if target.exists()]
    read = {_identity(file) for file in sources.values()}
    for target in existing:
        if _identity(target) in read:
            raise UserError(
                f"{target}: is an input and would be overwritten; choose another output directory"
            )
    if existing and not force:
        others = f" and {len(existing) - 1} more" if len(existing) > 1 else ""
        raise UserError(
            f"{existing[0]}{others}: exists; give --force to overwrite, or another output directory"
        )
    return sources


def _identity(file: Path) -> tuple[int, int]:
    """What two paths of the same file have in common, e.g. with a link between them."""
    status = file.stat()
    return status.st_dev, status.st_ino


def check_directory(directory: Path) -> None:
    """Check that a directory exists, or that it can be meant as one that has to be made.

    Raises:
        UserError: there is a file in place of it or of a parent, or its name is that of a picture or video.
    """
    nearest = next(path for path in (directory, *directory.parents) if path.exists())
    if not nearest.is_dir():
        raise UserError(f"{nearest}: is a file; give a directory to write to")
    kind, _ = mimetypes.guess_type(directory.name)
    if not directory.exists() and kind and kind.startswith(("image/", "video/")):
        raise UserError(f"{directory}: is a file's name; give a directory to write to")


def nothing_found(text: str, suffixes: Collection[str]) -> UserError:
    """The error for an input, perhaps a pattern, that is no picture and contains none."""
    if not has_magic(text) and not Path(text).exists():
        return UserError(f"{text}: no such file or directory; correct the path")
    return UserError(f"{text}: no picture there ({', '.join(sorted(suffixes))}); correct the path")


def expand(text: str, output: Path, suffixes: Collection[str]) -> list[tuple[Path, Path]]:
    """The files that one input stands for, each with its path below the output directory.

    A file stands for itself. A directory (with all below it) or a glob pattern stands for its files with one
    of `suffixes`, except for hidden files and results of an earlier run.

    Raises:
        UserError: the pattern is invalid.
    """
    path = Path(text)
    if path.is_file():
        return [(path, Path(path.name))]
    base = path if path.is_dir() else Path(*takewhile(lambda part: not has_magic(part), path.parts))
    pattern = "**/*" if path.is_dir() else str(path.relative_to(base))
    try:
        found = list(base.glob(pattern)) if has_magic(pattern) else []
    except ValueError as error:  # a name that contains `**`
        raise UserError(f"{text}: {error}; write e.g. **/*.jpg") from error
    files = sorted(
        file
        for file in found
        if file.suffix.lower() in suffixes
        and file.is_file()
        and not _is_hidden(file.relative_to(base))
        and not _is_result(file, output, base)
    )
    return [(file, file.relative_to(base)) for file in files]


def _is_hidden(file: Path) -> bool:
    """Whether a file is hidden, as thumbnails are."""
    return any(part.startswith(".") for part in file.parts)


def _is_result(file: Path, output: Path, base: Path) -> bool:
    """Whether an earlier run wrote the file, to an output directory below the one that is read."""
    return output.resolve() != base.resolve() and output.resolve() in file.resolve().parents
