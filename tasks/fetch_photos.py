"""Task: photos from the configured source, packed into one archive per shard, with a card."""

import json
import logging
import zipfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import distribution, version
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from annotated_types import Ge

from singleshot.errors import UserError, in_a_line
from singleshot.io.download import check_address, is_remote, local_or_cached, local_path
from singleshot.io.images import NamedBytes, encode_jpeg, picture_suffixes, read_rgb
from singleshot.io.packages import read_zipped
from singleshot.style.datasets.photos import ARCHIVE
from tasks.job import Event, Job, Progress, per_job

logger = logging.getLogger(__name__)

SUFFIXES = frozenset(picture_suffixes())
QUALITY = 95
TIMESTAMP = (1980, 1, 1, 0, 0, 0)
"""Timestamp of every member: the earliest that a zip can hold, so that archives of equal photos are equal."""
COCO_LICENCES = "photos of Flickr users under Creative Commons licences: cocodataset.org/#termsofuse"


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
            raise UserError(f"style.photos.path is not set; the source {self.source!r} needs it")


@dataclass(frozen=True)
class PhotosParams:
    """Parameters that one shard's archive depends on, besides its input files."""

    config: PhotosConfig
    shard: int

    @classmethod
    def of(cls, config: PhotosConfig, shard: int) -> Self:
        """Keep only settings that the source uses, so that other settings don't pack its photos again."""
        if config.source == "packages":
            config = replace(config, path=None, sha256=None)
        elif config.source == "folder":
            config = replace(config, sha256=None)
        return cls(config, shard)

    def inputs(self) -> dict[str, Path]:
        """The file or directory that :func:`fetch_photos` reads, if the source is a local one."""
        if self.config.source == "packages" or is_remote(str(self.config.path)):
            return {}
        return {self.config.source: local_path(str(self.config.path))}


@dataclass(frozen=True)
class PhotosCard:
    """Description of an archive of photos."""

    source: str
    origin: str
    """Versions of the packages, the folder's name, or the zip's URL or name."""
    sha256: str | None
    """SHA-256 of the zip."""
    licences: Mapping[str, str]
    """Licence of each photo by name, or of the whole source under `*`."""
    shard: int
    shards: int
    short_side_px: int
    photos: int
    skipped: Mapping[str, str]
    """Pictures that can't be read: the reason, by path in the source."""


@per_job
def fetch_photos(job: Job) -> Iterator[Event]:
    """Pack a job's shard of the photos (:class:`PhotosParams`).

    Inputs: `folder` or `zip`, as :meth:`PhotosParams.inputs` says. The output gets `photos.zip`, for
    :class:`PhotoSet`, and `card.json` (:class:`PhotosCard`). A picture that can't be read
    is skipped, with a warning and a line in the card.

    Raises:
        UserError: the source is missing, unreachable or damaged, or no picture of the shard can be read.
    """
    params: PhotosParams = job.params
    config = params.config
    with SOURCES[config.source](config, job.inputs) as source:
        named = _named(source.paths[: config.limit])
        pictures = [(path, name) for path, name in named.items() if name not in config.held_out]
        shard = dict(pictures[params.shard :: config.shards])
        skipped = yield from _pack(job, source, shard)
    if not pictures:
        raise UserError(f"{source.origin}: has no picture, by the suffixes of its files; add some")
    if not shard:
        raise UserError(
            f"{source.origin}: has {len(pictures)} pictures for {config.shards} shards; "
            "add some, or set fewer style.photos.shards"
        )
    if len(skipped) == len(shard):
        raise UserError(f"{source.origin}: no photo can be read ({next(iter(skipped.values()))}); add some")
    card = PhotosCard(
        source=config.source,
        origin=source.origin,
        sha256=source.sha256,
        licences=source.licences,
        shard=params.shard,
        shards=config.shards,
        short_side_px=config.short_side_px,
        photos=len(shard) - len(skipped),
        skipped=skipped,
    )
    (job.output / "card.json").write_text(
        json.dumps(asdict(card), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


@dataclass(frozen=True)
class _Source:
    origin: str
    paths: Sequence[str]
    """Paths of the pictures in the source, sorted."""
    read: Callable[[str], bytes]
    licences: Mapping[str, str] = field(default_factory=dict)
    sha256: str | None = None


def _named(paths: Sequence[str]) -> dict[str, str]:
    """Names in the archive by path: its stem, or the whole path if another picture has that stem or path."""
    stems = {path: PurePosixPath(path).stem for path in paths}
    times = Counter([*stems.values(), *paths])
    return {path: stem if times[stem] == 1 else path for path, stem in stems.items()}


def _pack(job: Job, source: _Source, pictures: Mapping[str, str]) -> Generator[Event, None, dict[str, str]]:
    """Write the job's archive of pictures, named by path; return which were skipped, and why.

    Members are stored, not compressed, since JPEGs don't shrink, and a PhotoSet reads them where they are.
    """
    skipped = {}
    with zipfile.ZipFile(job.output / ARCHIVE, "w") as archive:
        for k, (path, name) in enumerate(pictures.items(), start=1):
            try:
                file = NamedBytes(source.read(path), path)
                photo = read_rgb(file, short_side=job.params.config.short_side_px, enlarge=False)
            except UserError as error:
                skipped[path] = str(error)
                logger.warning("skipped %s", error)
            else:
                member = zipfile.ZipInfo(f"{name}.jpg", TIMESTAMP)
                member.create_system = 3  # Unix, wherever this runs
                archive.writestr(member, encode_jpeg(photo, QUALITY))
            yield Progress(k / len(pictures))
    return skipped


@dataclass(frozen=True)
class _Packaged:
    """A photo inside an installed package."""

    package: str
    path: str
    licence: str


PACKAGED = (
    _Packaged(
        "scikit-image", "skimage/data/astronaut.png", "public domain: NASA, portrait of Eileen Collins"
    ),
    _Packaged("scikit-image", "skimage/data/chelsea.png", "CC0: Stefan van der Walt"),
    _Packaged("scikit-image", "skimage/data/coffee.png", "CC0: Rachel Michetti, Pikolo Espresso Bar"),
    _Packaged("scikit-image", "skimage/data/rocket.jpg", "public domain: SpaceX, Falcon 9 with DSCOVR"),
    _Packaged(
        "scikit-image",
        "skimage/data/motorcycle_left.png",
        "none stated: Middlebury stereo benchmark (Scharstein et al. 2014), distributed by scikit-image",
    ),
    _Packaged(
        "scikit-learn", "sklearn/datasets/images/china.jpg", "CC BY 2.0: flickr.com/photos/danielbuechele"
    ),
    _Packaged("scikit-learn", "sklearn/datasets/images/flower.jpg", "CC BY 2.0: flickr.com/photos/vultilion"),
    _Packaged(
        "matplotlib",
        "matplotlib/mpl-data/sample_data/grace_hopper.jpg",
        "public domain: US Navy, portrait of Grace Hopper",
    ),
    _Packaged("scikit-image", "skimage/data/hubble_deep_field.jpg", "public domain: NASA"),
    _Packaged("scikit-image", "skimage/data/camera.png", "CC0: Lav Varshney"),
    _Packaged(
        "scikit-image", "skimage/data/coins.png", "no known copyright: Brooklyn Museum, coins of Pompeii"
    ),
    _Packaged("scikit-image", "skimage/data/brick.png", "CC0: CC0Textures, Bricks25"),
    _Packaged("scikit-image", "skimage/data/grass.png", "public domain: linolafett"),
    _Packaged("scikit-image", "skimage/data/gravel.png", "CC0: CC0Textures, Gravel04"),
)
"""The packages' photographs of people, animals, things, places and surfaces; only one of a stereo pair."""


@contextmanager
def _packages(_config: PhotosConfig, _inputs: Mapping[str, Path]) -> Iterator[_Source]:
    packages = {photo.path: photo.package for photo in PACKAGED}
    yield _Source(
        origin=", ".join(f"{package} {version(package)}" for package in sorted(set(packages.values()))),
        paths=sorted(packages),
        read=lambda path: Path(str(distribution(packages[path]).locate_file(path))).read_bytes(),
        licences={PurePosixPath(photo.path).stem: photo.licence for photo in PACKAGED},
    )


@contextmanager
def _folder(_config: PhotosConfig, inputs: Mapping[str, Path]) -> Iterator[_Source]:
    folder = inputs["folder"]
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; correct style.photos.path")
    files = {_readable(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}

    def read(path: str) -> bytes:
        try:
            return files[path].read_bytes()
        except OSError as error:
            raise UserError(f"{path}: can't be read ({error.strerror})") from error

    yield _Source(folder.name, _pictures(files), read)


def _readable(path: Path) -> str:
    """A path as text; bytes that are not UTF-8, as in a file's name from an old computer, are replaced."""
    return path.as_posix().encode(errors="surrogateescape").decode(errors="replace")


@contextmanager
def _zip(config: PhotosConfig, inputs: Mapping[str, Path]) -> Iterator[_Source]:
    url = str(config.path)
    file, origin, sha256 = local_or_cached(inputs.get("zip"), url, config.sha256, "style.photos.path")
    licences = {"*": COCO_LICENCES} if "cocodataset.org" in url else {}
    try:
        archive = zipfile.ZipFile(file)
    except Exception as error:  # damaged bytes: BadZipFile, UnicodeDecodeError, NotImplementedError, …
        raise UserError(f"{file}: not a zip, or an incomplete one; give a whole one") from error

    def read(path: str) -> bytes:
        try:
            return read_zipped(archive, path)
        except UserError:
            raise
        except Exception as error:  # a damaged member: BadZipFile, zlib.error, NotImplementedError, …
            raise UserError(f"{path}: can't be read ({in_a_line(error)})") from error

    with archive:
        yield _Source(origin, _pictures(archive.namelist()), read, licences, sha256)


SOURCES: Mapping[str, Callable[[PhotosConfig, Mapping[str, Path]], AbstractContextManager[_Source]]] = {
    "packages": _packages,
    "folder": _folder,
    "zip": _zip,
}


def _pictures(paths: Iterable[str]) -> list[str]:
    """Sorted paths of pictures, by suffix, without hidden files (such as `._0001.jpg` from a Mac)."""
    found = {path: PurePosixPath(path) for path in paths}
    return sorted(p for p, q in found.items() if q.suffix.lower() in SUFFIXES and not q.name.startswith("."))
