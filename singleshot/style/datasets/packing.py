"""Task: photos from packages, a folder or a zip, packed for :class:`PhotoSet`, with a card."""

import logging
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import distribution, version
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from annotated_types import Ge

from singleshot.errors import UserError, explained, in_a_line
from singleshot.io.addresses import check_address
from singleshot.io.download import local_or_cached
from singleshot.io.images import NamedBytes, encode_jpeg, picture_suffixes, read_rgb
from singleshot.io.packages import read_zipped
from singleshot.job import Event, Job, Progress, per_job
from singleshot.style.datasets.cards import local_input, write_card
from singleshot.style.datasets.photos import ARCHIVE

logger = logging.getLogger(__name__)

SUFFIXES = frozenset(picture_suffixes())
QUALITY = 95
TIMESTAMP = (1980, 1, 1, 0, 0, 0)
"""Timestamp of every member: the earliest that a zip can hold, so that archives of equal photos are equal."""
COCO_LICENCES = "photos of Flickr users under Creative Commons licences: cocodataset.org/#termsofuse"
PACKAGES = {"skimage": "scikit-image", "sklearn": "scikit-learn", "matplotlib": "matplotlib"}
"""Distributions by their packages."""
PACKAGED = {
    "skimage/data/astronaut.png": "public domain: NASA, portrait of Eileen Collins",
    "skimage/data/chelsea.png": "CC0: Stefan van der Walt",
    "skimage/data/coffee.png": "CC0: Rachel Michetti, Pikolo Espresso Bar",
    "skimage/data/rocket.jpg": "public domain: SpaceX, Falcon 9 with DSCOVR",
    "skimage/data/motorcycle_left.png": "none stated: Middlebury stereo benchmark (Scharstein et al. 2014), "
    "distributed by scikit-image",
    "sklearn/datasets/images/china.jpg": "CC BY 2.0: flickr.com/photos/danielbuechele",
    "sklearn/datasets/images/flower.jpg": "CC BY 2.0: flickr.com/photos/vultilion",
    "matplotlib/mpl-data/sample_data/grace_hopper.jpg": "public domain: US Navy, portrait of Grace Hopper",
    "skimage/data/hubble_deep_field.jpg": "public domain: NASA",
    "skimage/data/camera.png": "CC0: Lav Varshney",
    "skimage/data/coins.png": "no known copyright: Brooklyn Museum, coins of Pompeii",
    "skimage/data/brick.png": "CC0: CC0Textures, Bricks25",
    "skimage/data/grass.png": "public domain: linolafett",
    "skimage/data/gravel.png": "CC0: CC0Textures, Gravel04",
}
"""The packages' photographs of people, animals, things, places and surfaces, with their licences; only one of
a stereo pair."""


@dataclass(frozen=True)
class PhotosConfig:
    """Where photos come from, and how they are kept."""

    source: Literal["packages", "folder", "zip"] = "packages"
    """Source of the photos: those inside scikit-image, scikit-learn and matplotlib, a folder with its
    subfolders, or a zip of pictures."""
    path: str | None = None
    """Path of the folder or the zip, or http(s):// URL of a zip. Secrets come from ~/.netrc, or as $NAME from
    the environment."""
    sha256: str | None = None
    """Expected SHA-256 of the zip; if null, the actual one is only recorded."""
    short_side_px: Annotated[int, Ge(1)] = 512
    """Short side that larger photos are scaled down to, in pixels; no photo is scaled up."""
    limit: Annotated[int, Ge(1)] | None = None
    """Number of pictures to take from the source, the first in the order of their paths; null takes all."""
    held_out: tuple[str, ...] = ()
    """Names of photos to leave out, so that a network can be judged on photos that it never saw."""
    shards: Annotated[int, Ge(1)] = 1
    """Number of archives, which are packed at the same time: the i-th has every `shards`-th picture."""

    def __post_init__(self) -> None:
        check_address(self.path or "")
        if self.source != "packages" and not self.path:
            raise UserError(f"path is not set; photos of the source {self.source!r} need it")


@dataclass(frozen=True)
class PhotosParams:
    """Parameters that one shard's archive depends on, besides its input files."""

    config: PhotosConfig
    shard: int

    def inputs(self) -> dict[str, Path]:
        """The file or directory that :func:`fetch_photos` reads, if the source is a local one."""
        return local_input(self.config.source, self.config.path) if self.config.source != "packages" else {}


@per_job
def fetch_photos(job: Job) -> Iterator[Event]:
    """Pack a job's shard of the photos (:class:`PhotosParams`).

    Inputs: `folder` or `zip`, as :meth:`PhotosParams.inputs` says. The output gets `photos.zip`, for
    :class:`PhotoSet`, and `card.json`: where the photos are from, their licences by name, or under `*` that
    of all, and under `skipped`, why pictures can't be read, by path in the source; each is a warning, too.

    Raises:
        UserError: the source is missing, unreachable or damaged, or no picture of the shard can be read.
    """
    params: PhotosParams = job.params
    config = params.config
    source = {"packages": _packages, "folder": _folder, "zip": _zip}[config.source](config, job.inputs)
    found = (
        path
        for path in source.files
        if PurePosixPath(path).suffix.lower() in SUFFIXES
        and not PurePosixPath(path).name.startswith(".")  # as `._0001.jpg` from a Mac
    )
    named = _named(sorted(found)[: config.limit])
    pictures = [(path, name) for path, name in named.items() if name not in config.held_out]
    shard = dict(pictures[params.shard :: config.shards])
    if not shard:
        raise UserError(
            f"{source.origin}: number of pictures is {len(pictures)}; give at least {config.shards}, one for "
            "each archive"
        )
    skipped = yield from _pack(job, source, shard)
    if len(skipped) == len(shard):
        reason = next(iter(skipped.values()))
        raise UserError(f"{source.origin}: none of its pictures can be read ({reason}); add some that can")
    card = {
        "source": config.source,
        "origin": source.origin,
        "sha256": source.sha256,
        "licences": source.licences,
        "shard": params.shard,
        "shards": config.shards,
        "short_side_px": config.short_side_px,
        "photos": len(shard) - len(skipped),
        "skipped": skipped,
    }
    write_card(job, card)


@dataclass(frozen=True)
class _Source:
    origin: str
    """Versions of the packages, the folder's name, or the zip's URL or name."""
    files: Mapping[str, Callable[[], bytes]]
    """How all files in the source are read, by path."""
    licences: Mapping[str, str] = field(default_factory=dict)
    sha256: str | None = None


def _named(paths: Iterable[str]) -> dict[str, str]:
    """Names in the archive by path: its stem, or the whole path if another picture has that stem or path."""
    stems = {path: PurePosixPath(path).stem for path in paths}
    times = Counter([*stems.values(), *stems])
    return {path: stem if times[stem] == 1 else path for path, stem in stems.items()}


def _pack(job: Job, source: _Source, pictures: Mapping[str, str]) -> Generator[Event, None, dict[str, str]]:
    """Write the job's archive of pictures, named by path; return which were skipped, and why.

    Members are stored, not compressed, since JPEGs don't shrink, and a PhotoSet reads them where they are.
    """
    skipped = {}
    with zipfile.ZipFile(job.output / ARCHIVE, "w") as archive:
        for k, (path, name) in enumerate(pictures.items(), start=1):
            try:
                file = NamedBytes(source.files[path](), path)
                photo = read_rgb(file, short_side=job.params.config.short_side_px, enlarge=False)
            except Exception as error:  # OSError, or of a damaged zip: BadZipFile, zlib.error, …
                told = str(error) if isinstance(error, UserError) else in_a_line(error)
                skipped[path] = told if path in told else f"{path}: can't be read ({told})"
                logger.warning("skipped %s", skipped[path])
            else:
                member = zipfile.ZipInfo(f"{name}.jpg", TIMESTAMP)
                member.create_system = 3  # Unix, wherever this runs
                archive.writestr(member, encode_jpeg(photo, QUALITY))
            yield Progress(k / len(pictures))
    return skipped


def _packages(_config: PhotosConfig, _inputs: Mapping[str, Path]) -> _Source:
    packages = {path: distribution(PACKAGES[path.partition("/")[0]]) for path in PACKAGED}
    return _Source(
        origin=", ".join(f"{package} {version(package)}" for package in sorted(PACKAGES.values())),
        files={path: Path(str(of.locate_file(path))).read_bytes for path, of in packages.items()},
        licences={PurePosixPath(path).stem: licence for path, licence in PACKAGED.items()},
    )


def _folder(_config: PhotosConfig, inputs: Mapping[str, Path]) -> _Source:
    folder = inputs["folder"]
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of photos; correct its path")
    # Bytes of names that are not UTF-8, as from an old computer, are replaced.
    files = {
        os.fsencode(path.relative_to(folder)).decode(errors="replace"): path.read_bytes
        for path in folder.rglob("*")
        if path.is_file()
    }
    return _Source(folder.name, files)


def _zip(config: PhotosConfig, inputs: Mapping[str, Path]) -> _Source:
    url = str(config.path)
    file, origin, sha256 = local_or_cached(inputs.get("zip"), url, config.sha256, "the path of the photos")
    licences = {"*": COCO_LICENCES} if "cocodataset.org" in url else {}
    with explained(f"{file}: not a zip, or an incomplete one", "give a whole one"):
        archive = zipfile.ZipFile(file)
    files = {path: partial(read_zipped, archive, path) for path in archive.namelist()}
    return _Source(origin, files, licences, sha256)
