"""Cells, the unit of work and of resume, and the store that keeps them.

A cell's digest says what is computed, never where: it covers the task, its parameters, the contents of its
inputs, the source of every module that the task imports from its own package (`tasks`), and the versions of
the third-party packages that these import. A finished cell is a directory `.cells/<digest>/`, which is either
complete or absent; stages hard-link its files into their DVC outs.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.engine.processes import is_alive, this_process
from pipelines.engine.provenance import Made
from pipelines.engine.sources import package_versions, source_digests
from singleshot.errors import UserError, explained
from singleshot.io.whole_file import move_synced, sha256_of, sha256_of_value, sync
from singleshot.job import Task
from singleshot.secrets import without_secrets

log = logging.getLogger(__name__)

MANIFEST = "cell.json"
IDENTITY = ("task", "params", "inputs", "source", "packages")


@functools.cache
def _file_digest(path: Path, _size: int, _modified_ns: int) -> str:
    return sha256_of(path)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of a directory's files.

    An unchanged file is read only once.

    Raises:
        UserError: there is no such file.
    """
    if path.is_dir():
        parts = [
            (str(file.relative_to(path)), file_digest(file))
            for file in sorted(path.rglob("*"))
            if file.is_file()
        ]
        return sha256_of_value(parts)
    try:
        stat = path.stat()
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: no such file; if it is your own, correct its path with `make params SET=…`, otherwise "
            "make it with `dvc repro`"
        ) from error
    return _file_digest(path, stat.st_size, stat.st_mtime_ns)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One job of a sweep. Users see its name; the store addresses it by its digest."""

    name: str
    """Unique within the stage; also the cell's directory below the stage's out."""
    task: Task
    params: Any
    """A frozen dataclass that the task defines."""
    inputs: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Tags to filter runs by in MLflow, e.g. the pruner and the sparsity."""
    stack: str | None = None
    """Cells with the same `stack` may be passed to their task together."""
    size: int = 1
    """Amount of work, in the unit in which progress is shown."""
    modules: tuple[str, ...] = ()
    """Modules that the task imports by name, e.g. an agent's algorithm; import statements don't show them."""

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the digest covers, as JSON has it: the manifest repeats it."""
        return {
            "task": f"{self.task.__module__}.{self.task.__qualname__}",
            "params": json.loads(without_secrets(json.dumps(dataclasses.asdict(self.params)))),
            "inputs": {name: file_digest(path) for name, path in sorted(self.inputs.items())},
            "source": dict(source_digests(self.task.__module__, *self.modules)),
            "packages": dict(package_versions(self.task.__module__, *self.modules)),
        }

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the identity, as 32 hexadecimal digits."""
        return _digest_of(self.identity)


class SavedCheckpoint(NamedTuple):
    """A checkpoint of an unfinished cell: its step, and the state that the task yielded."""

    step: int
    state: bytes


def read_made(directory: Path) -> Made:
    """The record of how the finished cell in `directory` was made."""
    return Made.read(json.loads((directory / MANIFEST).read_bytes())["made"])


def _digest_of(identity: Mapping[str, Any]) -> str:
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def damage(directory: Path, digest: str) -> str | None:
    """The first file in which a finished cell isn't what its manifest says; None if there is none.

    The manifest itself has to be that of the cell `digest`, whatever the directory is called.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        Made.read(manifest["made"])
        if _digest_of({part: manifest[part] for part in IDENTITY}) != digest:
            return MANIFEST
        found = {
            str(file.relative_to(directory)): file_digest(file)
            for file in directory.rglob("*")
            if file.is_file() and file != directory / MANIFEST
        }
        return min((name for name, _ in found.items() ^ manifest["files"].items()), default=None)
    except Exception:  # a manifest may hold anything
        return MANIFEST


class CellStore:
    """Finished cells and the checkpoints of unfinished ones, below one directory.

    :class:`~pipelines.engine.remote_cells.RemoteCellStore` keeps a copy of them at a URL as well.
    """

    def __init__(self, root: Path):
        self.root = root
        self.where = str(root)

    def fetch(self, cells: Sequence[Cell]) -> None:
        """Fetch those of `cells` that other machines have computed. A local store has none to fetch."""

    def prepare(self) -> None:
        """Remove what killed drivers have left half-written or half-removed; see that cells can be written.

        Raises:
            UserError: they can't, e.g. because another user has made the store.
        """
        for place in (self.root / "staging", self.root / "checkpoints", self.root):
            fix = "let this user write there, or name another place in SINGLESHOT_CELLS"
            with explained(f"cells at {self.where}: {place} can't be written to", fix, OSError):
                place.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryDirectory(dir=place).cleanup()
        for half in (self.root / "staging").glob("*"):
            if not is_alive(half.name.rpartition("-")[0]):
                shutil.rmtree(half) if half.is_dir() else half.unlink(missing_ok=True)
        for kept in (self.root / "checkpoints").iterdir():
            if self.path(kept.name).exists():  # the cell was finished just before
                shutil.rmtree(kept, ignore_errors=True)

    def path(self, digest: str) -> Path:
        """The directory of a cell, whether the cell exists or not."""
        return self.root / digest

    def has(self, cell: Cell) -> bool:
        """Whether the cell exists and is undamaged. A damaged one is removed, with a warning."""
        directory = self.path(cell.digest)
        if not directory.exists():
            return False
        if damaged := damage(directory, cell.digest):
            log.warning("%s: %s is damaged; computing the cell %s again", directory, damaged, cell.name)
            if directory.is_dir() and not directory.is_symlink():
                shutil.rmtree(directory)
            else:
                directory.unlink()
        return not damaged

    def commit(self, cell: Cell, files: Mapping[str, bytes], made: Made) -> None:
        """Store a cell's results and artifacts, all of them or none, and drop its checkpoints."""
        staging = self._stage()
        staging.mkdir()
        artifacts = self._checkpoints(cell) / "artifacts"
        if artifacts.exists():
            shutil.copytree(artifacts, staging, dirs_exist_ok=True)
        for name, content in files.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).write_bytes(content)
        results = sorted(file for file in staging.rglob("*") if file.is_file())
        digests = {str(file.relative_to(staging)): sha256_of(file) for file in results}
        manifest = {"name": cell.name, **cell.identity, "files": digests, "made": dataclasses.asdict(made)}
        text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
        (staging / MANIFEST).write_text(text, encoding="utf-8")
        self._publish(staging, cell)

    def link(self, cell: Cell, destination: Path) -> None:
        """Hard-link a finished cell's files below `destination`; copy where a link is impossible."""
        source = self.path(cell.digest)
        for file in sorted(source.rglob("*")):
            if file.is_file() and file.name != MANIFEST:
                target = destination / file.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
                try:
                    os.link(file, target)
                except OSError:
                    shutil.copyfile(file, target)

    def save_checkpoint(self, cell: Cell, step: int, state: bytes) -> None:
        """Store the newest checkpoint of an unfinished cell, then delete the previous one."""
        newest = self._checkpoints(cell) / checkpoint_name(step, state)
        self._save(newest, state)
        # Another driver may finish the cell meanwhile, and remove the directory.
        with contextlib.suppress(FileNotFoundError):
            for older in newest.parent.iterdir():
                if older.is_file() and older != newest:
                    older.unlink(missing_ok=True)

    def save_artifact(self, cell: Cell, name: str, content: bytes) -> Path:
        """Store a file of an unfinished cell, which survives an interruption; returns its path."""
        path = self._checkpoints(cell) / "artifacts" / name
        self._save(path, content)
        return path

    def checkpoint(self, cell: Cell) -> SavedCheckpoint | None:
        """The newest checkpoint of an unfinished cell. A damaged one is removed, with a warning."""
        saved = [path for path in self._checkpoints(cell).glob("*") if path.is_file()]
        for path in sorted(saved, key=lambda path: step_of(path.name), reverse=True):
            with contextlib.suppress(FileNotFoundError):  # another driver has stored a newer one by now
                step, state = step_of(path.name), path.read_bytes()
                if path.name == checkpoint_name(step, state):
                    return SavedCheckpoint(step, state)
                log.warning("%s is damaged; the cell %s goes on from an earlier state", path, cell.name)
                path.unlink(missing_ok=True)
        return None

    def _stage(self) -> Path:
        staging = self.root / "staging"
        staging.mkdir(parents=True, exist_ok=True)
        return staging / f"{this_process()}-{uuid.uuid4().hex}"

    def _publish(self, staging: Path, cell: Cell) -> None:
        for file in staging.rglob("*"):
            if file.is_file():
                # The outs of stages are hard links to these files: an edit of an out must not change them.
                file.chmod(0o444)
        try:
            move_synced(staging, self.path(cell.digest))
        except OSError:
            if not self.has(cell):
                raise
            shutil.rmtree(staging)  # another driver was first; its files are the same
        shutil.rmtree(self._checkpoints(cell), ignore_errors=True)

    def _save(self, path: Path, content: bytes) -> None:
        """Write a file of an unfinished cell, unless another driver finishes the cell meanwhile."""
        partial = self._stage()
        partial.write_bytes(content)
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
            move_synced(partial, path)
            for directory in path.parent.parents[: len(path.parent.relative_to(self.root).parts)]:
                sync(directory)  # which may be new as well
        partial.unlink(missing_ok=True)

    def _checkpoints(self, cell: Cell) -> Path:
        return self.root / "checkpoints" / cell.digest


def checkpoint_name(step: int, state: bytes) -> str:
    """The name of a checkpoint's file, which shows whether the file is whole."""
    return f"{step}-{hashlib.sha256(state).hexdigest()}"


def step_of(name: str) -> int:
    """The step of a checkpoint, by its :func:`checkpoint_name`; -1 for any other name."""
    step = name.partition("-")[0]
    return int(step) if step.isdecimal() else -1  # not ², which is a digit
