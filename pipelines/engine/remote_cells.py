"""A store of cells at a URL, which several machines share.

The URL is that of any object store that fsspec knows (`s3://bucket/prefix`). Below it are::

    <cell's digest>/<SHA-256>                       each of the cell's files, named by its content
    <cell's digest>/cell.json                       the cell's manifest, which is written last
    checkpoints/<cell's digest>/<step>-<SHA-256>    the state from which another machine can go on
    checkpoints/<cell's digest>/artifacts/<name>    the artifacts that the cell has yielded so far

S3 cannot rename objects, but writes each one whole or not at all. Two drivers that compute a cell at the same
time, on machines that round differently, don't overwrite each other's files, since these are named by their
content: whichever manifest comes last, its files are there.
"""

import contextlib
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import fsspec
import tqdm

from pipelines.engine.cells import (
    MANIFEST,
    Cell,
    CellStore,
    checkpoint_name,
    damage,
    files_of,
    is_inside,
    is_whole,
    log,
    step_of,
)
from pipelines.engine.disks import is_disk_full
from pipelines.engine.dvc_files import shared_checkout
from pipelines.engine.provenance import Made
from singleshot.errors import UserError
from singleshot.secrets import without_secrets

VARIABLE = "SINGLESHOT_CELLS"
LOCAL = ("file", "local")
"""fsspec's protocols for directories. It makes none for the files that it writes, as a local store does."""


def open_store(root: Path) -> CellStore:
    """The store at the path or URL in SINGLESHOT_CELLS, by default at `root` in the checkout.

    Where results are kept does not change them, so the environment names the place, not a stage's parameters.

    Raises:
        UserError: the URL is mistyped or cannot be used.
    """
    where = os.environ.get(VARIABLE) or str(root)
    protocol, is_url, path = where.partition("://")
    if is_url and protocol not in LOCAL:
        return RemoteCellStore(shared_checkout() / root, where)
    if not is_url and ":" in where.partition("/")[0]:  # most likely `s3:/bucket`: a directory named `s3:`
        raise UserError(f"{VARIABLE}={where}: write s3://BUCKET/PREFIX, or ./{where} if it is a directory")
    return CellStore(shared_checkout() / (path or where))


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
            self._prefix = path.rstrip("/")
            if not self._prefix:
                raise ValueError("no bucket is named")

    def fetch(self, cells: Sequence[Cell]) -> None:
        """Download those of `cells` that only the URL has, and upload those that only this machine has."""
        with self._as_user_error():
            checkpoints = self._list_checkpoints()
            manifests = self._read_manifests(cells)
            for cell in tqdm.tqdm(cells, "fetching", leave=False, unit="cell", disable=None):
                if not self.has(cell) and cell.digest in manifests:
                    self._download(cell, manifests[cell.digest])
                if not self.has(cell):
                    self._fetch_checkpoint(cell, checkpoints[cell.digest])
                elif cell.digest not in manifests:
                    self._upload(cell)

    def commit(self, cell: Cell, files: Mapping[str, bytes], made: Made) -> None:
        """Store a cell here and then at the URL, and drop its checkpoints in both places."""
        super().commit(cell, files, made)
        with self._as_user_error():
            self._upload(cell)

    def save_checkpoint(self, cell: Cell, step: int, state: bytes) -> None:
        """Store the newest checkpoint in both places, then delete the previous one."""
        super().save_checkpoint(cell, step, state)
        place = self._remote("checkpoints", cell.digest)
        with self._as_user_error():
            self._files.pipe_file(f"{place}/{checkpoint_name(step, state)}", state)
            saved = self._files.find(place, maxdepth=1)
            self._remove([key for key in saved if step_of(PurePosixPath(key).name) < step])

    def save_artifact(self, cell: Cell, name: str, content: bytes) -> Path:
        """Store a file of an unfinished cell in both places; returns its local path."""
        with self._as_user_error():
            self._files.pipe_file(self._remote("checkpoints", cell.digest, "artifacts", name), content)
        return super().save_artifact(cell, name, content)

    def _list_checkpoints(self) -> Mapping[str, list[str]]:
        found = defaultdict(list)
        place = self._remote("checkpoints/")
        for key in self._files.find(place):
            digest, _, name = key.removeprefix(place).partition("/")
            found[digest].append(name)
        return found

    def _read_manifests(self, cells: Sequence[Cell]) -> dict[str, bytes]:
        keys = {self._remote(cell.digest, MANIFEST): cell.digest for cell in cells}
        answers = self._files.cat(list(keys), on_error="return") if keys else {}
        for answer in answers.values():
            if isinstance(answer, Exception) and not isinstance(answer, FileNotFoundError):
                raise answer
        return {keys[key]: answer for key, answer in answers.items() if isinstance(answer, bytes)}

    def _download(self, cell: Cell, manifest: bytes) -> None:
        staging = self._stage()
        staging.mkdir()
        (staging / MANIFEST).write_bytes(manifest)
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, FileNotFoundError):
            files = files_of(manifest)
            for name in files:
                (staging / name).parent.mkdir(parents=True, exist_ok=True)
            self._files.get(
                [self._remote(cell.digest, content) for content in files.values()],
                [str(staging / name) for name in files],
            )
        if damaged := damage(staging):
            where = self._remote(cell.digest)
            log.warning("%s: %s is damaged; computing the cell %s again", where, damaged, cell.name)
            shutil.rmtree(staging)
        else:
            self._publish(staging, cell)

    def _upload(self, cell: Cell) -> None:
        directory = self.path(cell.digest)
        manifest = (directory / MANIFEST).read_bytes()
        files = files_of(manifest)
        self._files.put(
            [str(directory / name) for name in files],
            [self._remote(cell.digest, content) for content in files.values()],
        )
        self._files.pipe_file(self._remote(cell.digest, MANIFEST), manifest)
        self._remove(self._files.find(self._remote("checkpoints", cell.digest)))

    def _fetch_checkpoint(self, cell: Cell, names: Sequence[str]) -> None:
        """Download the newest checkpoint among `names`, with the artifacts, if it is newer than ours."""
        ours = self.checkpoint(cell)
        newest = max(names, key=step_of, default="")
        if step_of(newest) <= (ours.step if ours else -1):
            return
        place = self._remote("checkpoints", cell.digest)
        # Another driver may have stored a newer one by now, or the finished cell.
        with contextlib.suppress(FileNotFoundError):
            state = self._files.cat_file(f"{place}/{newest}")
            if not is_whole(newest, state):
                log.warning(
                    "%s/%s is damaged; computing the cell %s from its start", place, newest, cell.name
                )
                return
            for name in names:
                artifact = name.removeprefix("artifacts/")
                if artifact != name and is_inside(artifact):
                    super().save_artifact(cell, artifact, self._files.cat_file(f"{place}/{name}"))
            super().save_checkpoint(cell, step_of(newest), state)

    def _remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(key)

    def _remote(self, *parts: str) -> str:
        return "/".join([self._prefix, *parts])

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
