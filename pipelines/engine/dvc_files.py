"""DVC's index in this checkout, and files that a kill, a power cut or a full disk leaves cut off.

DVC refuses to run with some of its files, and restores others as they are, and Python imports no compiled
module that is cut off, so `make repro` removes them first: `python -m pipelines.engine.dvc_files`. DVC makes
its files again from its cache and from the cells in .cells, and Python compiles. The module imports little,
so that this takes only a moment.
"""

import contextlib
import hashlib
import marshal
import re
import subprocess
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
USED = DVC / "rwlock"
"""Which process reads and writes which path of a stage."""
LOCAL = Path(".dvc/config.local")
SITE = Path(".dvc-site")
"""DVC's index of files, of which it unpickles parts: what `core.site_cache_dir` of `.dvc/config` names.

By default it is in /var/tmp, and DVC lets everybody write there. It is not in `.dvc`, as DVC would make that
in any directory in which it is run, and take it for a checkout.
"""
CACHE = Path(".dvc/cache/files/md5")
CHECKED = DVC / "checked"
"""Its time is that of the last check of `CACHE`, and its contents that of this machine's start."""

CODE = ("pipelines", "tasks", "singleshot")
PYC_HEADER_BYTES = 16


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


def make_absolute() -> None:
    """Let DVC find its index from any directory.

    DVC reads `.dvc/config` in the copies of `dvc exp run --queue` and `--temp`, too, where a relative path
    would lead elsewhere. It passes `.dvc/config.local` on to them, which belongs only to this checkout.
    """
    place = str(SITE.resolve())
    if LOCAL.parent.is_dir() and not (LOCAL.exists() and place in LOCAL.read_text("utf-8")):
        setting = ["config", "--quiet", "--local", "core.site_cache_dir", place]
        subprocess.run([sys.executable, "-m", "dvc", *setting], check=True)


def mend() -> Iterator[str]:
    """Remove what is damaged, unless DVC is at work; yields a line for each thing."""
    yield from _mend_bytecode()
    if not DVC.is_dir():
        return
    with contextlib.suppress(Timeout), FileLock(DVC / "lock", timeout=0):
        if LOCK.exists() and not _is_whole(LOCK):
            LOCK.unlink()
            yield f"{LOCK} was cut off: removed; DVC writes it again"
        yield from _mend_cache()
    # A process that has ended may have left a part of its record, or an id that another process has by now.
    with contextlib.suppress(Timeout, FileNotFoundError), FileLock(DVC / "rwlock.lock", timeout=3):
        if not any(is_dvc(int(pid)) for pid in re.findall(r'"pid": (\d+)', USED.read_text("utf-8"))):
            USED.unlink()


def _mend_bytecode() -> Iterator[str]:
    """Remove what a full disk left of compiled modules: until 3.12.8, Python does not look (gh-126606)."""
    compiled = f"*.{sys.implementation.cache_tag}.pyc"
    for path in (path for package in CODE for path in Path(package).rglob(compiled)):
        try:
            marshal.loads(path.read_bytes()[PYC_HEADER_BYTES:])
        except (EOFError, ValueError, TypeError):
            path.unlink(missing_ok=True)
            yield f"{path} was cut off: removed; Python compiles it again"


def _is_whole(lock: Path) -> bool:
    """Whether DVC would read a lock file: a cut leaves a key without a value, or none at all."""
    try:
        stages = yaml.load(lock.read_bytes(), yaml.CSafeLoader)["stages"].values()
        entries = [entry for stage in stages for kind in ("deps", "outs") for entry in stage.get(kind, [])]
        return all(stage["cmd"] for stage in stages) and all(entry["path"] for entry in entries)
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        return False


def _mend_cache() -> Iterator[str]:
    """Remove files whose MD5 is not their name: DVC would restore damaged results from them for ever.

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


if __name__ == "__main__":
    keep_private()
    make_absolute()
    for line in mend():
        print(f"mended: {line}", file=sys.stderr)
