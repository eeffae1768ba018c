"""Files of DVC's that a kill or a power cut leaves cut off, as DVC writes them in place, and does not sync.

DVC refuses to run with some of them, and restores others as they are, so `make repro` mends them first:
`python -m pipelines.engine.dvc_files`. The module imports little, so that this takes only a moment.
"""

import contextlib
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
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
CHECKED = DVC / "checked"
"""Its time is that of the last check of `CACHE`, and its contents that of this machine's start."""


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
    if not LOCK.exists() or _is_whole(LOCK):
        return
    if KEPT_LOCK.exists() and _is_whole(KEPT_LOCK):
        with whole_file(LOCK) as copy:
            shutil.copyfile(KEPT_LOCK, copy)
        yield f"{LOCK} was cut off: restored from the copy that its last stage began with"
    else:
        LOCK.unlink()
        yield f"{LOCK} was cut off: removed; DVC writes it again from its cache, and from the cells in .cells"


def _is_whole(lock: Path) -> bool:
    """Whether DVC would read a lock file: a cut leaves a key without a value, or none at all."""
    try:
        stages = yaml.load(lock.read_bytes(), yaml.CSafeLoader)["stages"].values()
        entries = [entry for stage in stages for kind in ("deps", "outs") for entry in stage.get(kind, [])]
        return all(stage["cmd"] for stage in stages) and all(entry["path"] for entry in entries)
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        return False


def _mend_cache() -> Iterator[str]:
    """Remove what is not what its name says, its MD5: DVC would restore damaged results from it for ever.

    A power cut may damage everything, so this machine's start counts; otherwise what has changed is checked.
    """
    start = f"{psutil.boot_time():.0f}"
    seen = CHECKED.exists() and CHECKED.read_text("utf-8") == start
    since = CHECKED.stat().st_mtime - 1 if seen else 0.0
    with whole_file(CHECKED) as now:
        now.write_text(start, encoding="utf-8")
        damaged = [path for path in CACHE.glob("*/*") if path.stat().st_ctime > since and _is_damaged(path)]
    for path in damaged:
        path.unlink()
    if damaged:
        yield f"{CACHE}: removed {len(damaged)} damaged files; stages link their cells again"


def _is_damaged(path: Path) -> bool:
    named = re.fullmatch(r"([0-9a-f]{32})(\.dir)?", path.parent.name + path.name)
    if named is None:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() != named[1]


def _mend_used() -> Iterator[str]:
    """Remove the record if all processes in it have ended, whose ids other processes may have by now."""
    if not USED.exists():
        return
    try:
        used = json.loads(USED.read_text("utf-8"))
        readers = (entry for entries in used.get("read", {}).values() for entry in entries)
        entries = [*used.get("write", {}).values(), *readers]
        if not entries or any(is_dvc(entry["pid"]) for entry in entries):
            return
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # it was cut off
    USED.unlink()
    yield f"{USED}: removed, as it is damaged or of a DVC that has ended"


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
