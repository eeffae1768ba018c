"""A store of cells at a URL, which several machines share.

The URL is that of any object store that fsspec knows (`s3://bucket/prefix`). Below it are::

    <cell's digest>.zip                                 a finished cell with its manifest
    checkpoints/<cell's digest>/<step>-<SHA-256>.zip    a state to continue from, with the artifacts so far

S3 cannot rename objects, but writes each one whole or not at all: of two drivers that compute a cell at the
same time, on machines that round differently, the last one's files stay, all of them.
"""

import contextlib
import functools
import logging
import os
import shutil
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import fsspec
import tqdm

from pipelines.engine.cells import Cell, CellStore, checkpoint_name, damage, log, step_of
from pipelines.engine.disks import is_disk_full
from pipelines.engine.dvc_files import shared_checkout
from pipelines.engine.provenance import Made
from singleshot.errors import UserError, in_a_line
from singleshot.secrets import without_secrets

VARIABLE = "SINGLESHOT_CELLS"


def open_store(root: Path) -> CellStore:
    """The store at the path or URL in SINGLESHOT_CELLS, by default at `root` in the checkout.

    Where results are kept does not change them, so the environment names the place, not a stage's parameters.

    Raises:
        UserError: the URL cannot be used.
    """
    where = os.environ.get(VARIABLE) or str(root)
    if "://" in where:
        return RemoteCellStore(shared_checkout() / root, where)
    return CellStore(shared_checkout() / where)


class RemoteCellStore(CellStore):
    """A local store, which serves as a cache, and a copy of it at a URL.

    Every method raises UserError if the URL cannot be used. Computed cells stay in the local store then, and
    the next :meth:`fetch` uploads them.
    """

    def __init__(self, root: Path, url: str):
        super().__init__(root)
        self.where = without_secrets(url)
        # When a network drops, aiohttp leaves behind a task for each connection, which asyncio reports with a
        # traceback. S3's client tries again, and raises an error if it fails in the end.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        with self._as_user_error():
            # No cache of listings, since other drivers write there as well.
            self._files, path = fsspec.url_to_fs(url, use_listings_cache=False)
            if not path.rstrip("/"):
                raise ValueError("no bucket is named")
            self._prefix = f"{path.rstrip('/')}/"

    def fetch(self, cells: Sequence[Cell]) -> None:
        """Download those of `cells` that only the URL has, and upload those that only this machine has."""
        with self._as_user_error():
            there: dict[str, list[str]] = defaultdict(list)
            for key in self._files.find(self._prefix):
                folder, _, name = key.removeprefix(self._prefix).rpartition("/")
                there[folder].append(name.removesuffix(".zip"))
            finished = set(there[""])
            for cell in tqdm.tqdm(cells, "fetching", leave=False, unit="cell", disable=None):
                if not self.has(cell) and cell.digest in finished:
                    self._download(cell)
                if not self.has(cell):
                    self._fetch_checkpoint(cell, there[f"checkpoints/{cell.digest}"])
                elif cell.digest not in finished:
                    self._upload(cell)

    def commit(self, cell: Cell, files: Mapping[str, bytes], made: Made) -> None:
        """Store a cell here and then at the URL, and drop its checkpoints in both places."""
        super().commit(cell, files, made)
        with self._as_user_error():
            self._upload(cell)

    def save_checkpoint(self, cell: Cell, step: int, state: bytes) -> None:
        """Store the newest checkpoint in both places, with the artifacts, then delete the previous one."""
        super().save_checkpoint(cell, step, state)
        place = f"checkpoints/{cell.digest}"
        with self._as_user_error():
            # Another driver on this disk may finish the cell meanwhile, and remove the directory.
            with contextlib.suppress(FileNotFoundError):
                self._put(self.root / place, f"{place}/{checkpoint_name(step, state)}")
            saved = self._files.find(self._prefix + place)
            self._remove([key for key in saved if step_of(key.rpartition("/")[2]) < step])

    def _download(self, cell: Cell) -> None:
        if directory := self._get(cell.digest, lambda there: damage(there, cell.digest)):
            self._publish(directory, cell)

    def _upload(self, cell: Cell) -> None:
        self._put(self.path(cell.digest), cell.digest)
        self._remove(self._files.find(f"{self._prefix}checkpoints/{cell.digest}"))

    def _fetch_checkpoint(self, cell: Cell, names: Sequence[str]) -> None:
        """Download the newest good checkpoint among `names`, with the artifacts, if it is newer than ours."""
        ours = self.checkpoint(cell)
        for name in sorted(names, key=step_of, reverse=True):
            if step_of(name) <= (ours.step if ours else -1):
                return
            if directory := self._get(f"checkpoints/{cell.digest}/{name}", functools.partial(_unlike, name)):
                artifacts = directory / "artifacts"
                for file in artifacts.rglob("*"):
                    if file.is_file():
                        self.save_artifact(cell, file.relative_to(artifacts).as_posix(), file.read_bytes())
                super().save_checkpoint(cell, step_of(name), (directory / name).read_bytes())
                shutil.rmtree(directory)
                return

    def _put(self, directory: Path, name: str) -> None:
        packed = self._stage()
        with zipfile.ZipFile(packed, "w", strict_timestamps=False) as archive:
            for file in directory.rglob("*"):
                archive.write(file, file.relative_to(directory))
        self._files.put_file(str(packed), f"{self._prefix}{name}.zip")
        packed.unlink()

    def _get(self, name: str, damaged: Callable[[Path], str | None]) -> Path | None:
        """A new directory with what `_put` has stored; None, with a warning, if it is damaged or gone."""
        packed, directory = self._stage(), self._stage()
        try:
            with contextlib.suppress(FileNotFoundError):  # another driver has removed it
                self._files.get_file(f"{self._prefix}{name}.zip", str(packed))
            reason = _unpack(packed, directory) or damaged(directory)
        finally:
            packed.unlink(missing_ok=True)
        if reason is None:
            return directory
        log.warning("%s%s is damaged: %s", self._prefix, name, reason)
        shutil.rmtree(directory, ignore_errors=True)
        return None

    def _remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(key)

    @contextlib.contextmanager
    def _as_user_error(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise  # of a cell's inputs
        except Exception as error:
            if is_disk_full(error):
                raise  # the local one
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(
                f"cells at {self.where}: {reason}; correct {VARIABLE} or the settings of the connection "
                f"(AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …); finished cells are kept in {self.root}"
            ) from error


def _unpack(packed: Path, directory: Path) -> str | None:
    """What is wrong with a zip; None if it could be unpacked."""
    try:
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(directory)  # which leaves out of names what leads elsewhere
    except Exception as error:  # from zipfile, zlib, bz2, lzma, or the system that refuses a name
        if is_disk_full(error):
            raise
        return in_a_line(error)
    return None


def _unlike(name: str, directory: Path) -> str | None:
    """The name of a checkpoint, unless its file in `directory` is what the name says."""
    file = directory / name
    return None if file.is_file() and checkpoint_name(step_of(name), file.read_bytes()) == name else name
