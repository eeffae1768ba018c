"""Files of DVC's that a kill or a power cut leaves cut off, as DVC writes them in place.

DVC refuses to run with such a file, so `make repro` mends them first: `python -m pipelines.engine.dvc_files`.
The module imports little, so that this takes only a moment.
"""

import contextlib
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from pipelines.engine.processes import is_dvc
from singleshot.io.whole_file import whole_file

DVC = Path(".dvc/tmp")
"""The directory of DVC's files about its processes."""
LOCK = Path("dvc.lock")
KEPT_LOCK = DVC / "dvc.lock"
"""A copy of `LOCK` from the beginning of the last stage's command."""
USED = DVC / "rwlock"
"""Which process reads and writes which path of a stage."""
SITE = Path(".dvc-site")
"""DVC's index of files, of which it unpickles parts: what `core.site_cache_dir` of `.dvc/config` names.

By default it is in /var/tmp, and DVC lets everybody write there. It is not in `.dvc`, as DVC would make that
in any directory in which it is run, and take it for a checkout.
"""
CACHE = Path(".dvc/cache/files/md5")
EMPTY = hashlib.md5(b"", usedforsecurity=False).hexdigest()


def shared_checkout() -> Path:
    """The checkout whose cells and runs this process shares, relative to the working directory if it is that.

    `dvc exp run --queue` and `--temp` run an experiment in a copy of the checkout, `.dvc/tmp/exps/…`, which
    DVC removes afterwards.
    """
    for copy in (Path.cwd(), *Path.cwd().parents):
        if copy.match("*/.dvc/tmp/exps"):
            return copy.parents[2]
    return Path()


def keep_private() -> None:
    """Let nobody but this user write to DVC's index, which DVC itself makes open to everybody."""
    SITE.mkdir(exist_ok=True)
    SITE.chmod(0o700)


def keep_lock() -> None:
    """Copy `dvc.lock` while DVC runs a stage's command, as it doesn't write to the file meanwhile."""
    if LOCK.exists() and DVC.is_dir():
        with whole_file(KEPT_LOCK) as copy:
            shutil.copyfile(LOCK, copy)


def mend() -> Iterator[str]:
    """Mend what is damaged, unless DVC is at work; yields a line for each thing."""
    if not DVC.is_dir():
        return
    with contextlib.suppress(Timeout), FileLock(DVC / "lock", timeout=0):
        yield from _mend_lock()
        yield from _mend_cache()
    with contextlib.suppress(Timeout), FileLock(DVC / "rwlock.lock", timeout=3):
        yield from _mend_used()


def _mend_lock() -> Iterator[str]:
    if not LOCK.exists() or is_whole(LOCK):
        return
    damaged = f"{LOCK} was cut off while DVC wrote it"
    if KEPT_LOCK.exists() and is_whole(KEPT_LOCK):
        with whole_file(LOCK) as copy:
            shutil.copyfile(KEPT_LOCK, copy)
        yield f"{damaged}: restored from the copy that its last stage began with"
    else:
        LOCK.unlink()
        yield f"{damaged}: removed; DVC writes it again from its cache, and from the cells in .cells"


def is_whole(lock: Path) -> bool:
    """Whether DVC would accept a lock file."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from voluptuous import Invalid

    try:
        with lock.open(encoding="utf-8") as file:
            COMPILED_LOCKFILE_SCHEMA(yaml.load(file, yaml.CSafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError, Invalid):
        return False
    return True


def _mend_cache() -> Iterator[str]:
    """Remove empty files, from which DVC would restore empty results."""
    empty = [
        path
        for path in CACHE.glob("*/*")
        if not path.stat().st_size and path.parent.name + path.name != EMPTY
    ]
    for path in empty:
        path.unlink()
    if empty:
        yield f"{CACHE}: removed {len(empty)} files that a power cut has emptied"


def _mend_used() -> Iterator[str]:
    """Remove entries of processes that have ended, whose ids other processes may have by now."""
    if not USED.exists():
        return
    try:
        used: dict[str, Any] = json.loads(USED.read_text("utf-8"))
        writers = {path: entry for path, entry in used.get("write", {}).items() if is_dvc(entry["pid"])}
        readers = {
            path: [entry for entry in entries if is_dvc(entry["pid"])]
            for path, entries in used.get("read", {}).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        USED.unlink()
        yield f"{USED} was cut off while DVC wrote it: removed; it names only what DVC was using"
        return
    alive = {"write": writers, "read": {path: entries for path, entries in readers.items() if entries}}
    if alive != {"write": used.get("write", {}), "read": used.get("read", {})}:
        with whole_file(USED) as file:
            file.write_text(json.dumps(alive), encoding="utf-8")
        yield f"{USED}: removed what a DVC was using that has ended"


def _may_run() -> bool:
    """Whether there is a Git repository, which an unpacked archive is not, or DVC is to go without."""
    settings = (file for file in (Path(".dvc/config"), Path(".dvc/config.local")) if file.exists())
    return any((folder / ".git").exists() for folder in (Path.cwd(), *Path.cwd().parents)) or any(
        "no_scm" in file.read_text("utf-8") for file in settings
    )


if __name__ == "__main__":
    if not _may_run():
        sys.exit("error: no Git repository here, which DVC needs; run `git init`, then the same again")
    keep_private()
    for line in mend():
        print(f"mended: {line}", file=sys.stderr)
