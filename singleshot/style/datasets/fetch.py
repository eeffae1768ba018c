"""Tasks: photos, paintings and trained weights from the configured sources, each with a card."""

import hashlib
import json
import logging
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import distribution, version
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from safetensors.torch import save_file

from singleshot.errors import UserError, in_a_line
from singleshot.io.addresses import check_address, is_remote, local_path
from singleshot.io.download import local_or_cached
from singleshot.io.images import NamedBytes, encode_jpeg, encode_png, picture_suffixes, read_rgb
from singleshot.io.packages import read_zipped
from singleshot.job import Event, Job, Metrics, Progress, per_job
from singleshot.style.backbones import (
    BackboneName,
    at_least,
    load_backbone,
    normalize_activations,
    save_backbone,
)
from singleshot.style.datasets.paintings import drawn_painting
from singleshot.style.datasets.photos import ARCHIVE, PhotoSet
from singleshot.style.datasets.weights import WeightsSource, read_backbone, read_lpips_heads

logger = logging.getLogger(__name__)

SUFFIXES = frozenset(picture_suffixes())
QUALITY = 95
TIMESTAMP = (1980, 1, 1, 0, 0, 0)
"""Timestamp of every member: the earliest that a zip can hold, so that archives of equal photos are equal."""
COCO_LICENCES = "photos of Flickr users under Creative Commons licences: cocodataset.org/#termsofuse"
DRAWN = "drawn"
SEED = 0
"""Seed of the crops that means are taken over. It isn't configurable, since with hundreds of crops the choice
hardly matters."""


def _write_card(job: Job, card: Mapping[str, Any]) -> None:
    text = json.dumps(card, indent=2, ensure_ascii=False) + "\n"
    (job.output / "card.json").write_text(text, encoding="utf-8")


def _local(name: str, location: str | None) -> dict[str, Path]:
    """The input file or folder at a configured location, if it is a local one."""
    return {name: local_path(location)} if location and not is_remote(location) else {}


# --- photos ---


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

    def inputs(self) -> dict[str, Path]:
        """The file or directory that :func:`fetch_photos` reads, if the source is a local one."""
        return _local(self.config.source, self.config.path) if self.config.source != "packages" else {}


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
    skipped = yield from _pack(job, source, shard)
    if len(skipped) == len(shard):
        reason = next(iter(skipped.values()), f"it has {len(pictures)} for {config.shards} shards")
        raise UserError(
            f"{source.origin}: no picture of shard {params.shard} can be read ({reason}); add some, or set "
            "fewer style.photos.shards"
        )
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
    _write_card(job, card)


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
        raise UserError(f"{folder}: no such folder; correct style.photos.path")
    # Bytes of names that are not UTF-8, as from an old computer, are replaced.
    files = {
        os.fsencode(path.relative_to(folder)).decode(errors="replace"): path.read_bytes
        for path in folder.rglob("*")
        if path.is_file()
    }
    return _Source(folder.name, files)


def _zip(config: PhotosConfig, inputs: Mapping[str, Path]) -> _Source:
    url = str(config.path)
    file, origin, sha256 = local_or_cached(inputs.get("zip"), url, config.sha256, "style.photos.path")
    licences = {"*": COCO_LICENCES} if "cocodataset.org" in url else {}
    try:
        archive = zipfile.ZipFile(file)
    except Exception as error:  # damaged bytes: BadZipFile, UnicodeDecodeError, NotImplementedError, …
        raise UserError(f"{file}: not a zip, or an incomplete one; give a whole one") from error
    files = {path: partial(read_zipped, archive, path) for path in archive.namelist()}
    return _Source(origin, files, licences, sha256)


# --- paintings ---


@dataclass(frozen=True)
class PaintingConfig:
    """Where one painting comes from."""

    source: str
    """`drawn` for a painting that comes with this project, else the path or URL of a picture. Secrets come
    from ~/.netrc, or as $NAME from the environment."""
    sha256: str | None = None
    """SHA-256 that the file must have; with null, the file's SHA-256 is only recorded."""

    def __post_init__(self) -> None:
        check_address(self.source)


@dataclass(frozen=True)
class PaintingParams:
    """Parameters that one painting depends on, besides its input file."""

    name: str
    """Name of the style."""
    config: PaintingConfig
    long_side_px: int
    """Long side of the painting, in pixels. A file's picture is scaled down to it if it is larger, but not
    up."""

    def inputs(self) -> dict[str, Path]:
        """The file that :func:`fetch_painting` reads, unless it is at a URL.

        Raises:
            UserError: no painting of that name comes with this project.
        """
        if self.config.source == DRAWN:
            return {"painting": drawn_painting(self.name)}
        return _local("painting", self.config.source)


@per_job
def fetch_painting(job: Job) -> None:
    """Copy or fetch a job's painting (:class:`PaintingParams`).

    Inputs: `painting`, as :meth:`PaintingParams.inputs` says. The output gets `painting.png` and `card.json`,
    which has its size and SHA-256, and the name or URL and the SHA-256 of the file that it was made from.

    Raises:
        UserError: the file is missing, unreachable, damaged or no picture, or its SHA-256 isn't the expected
            one.
    """
    params: PaintingParams = job.params
    setting = f"style.paintings.sources.{params.name}.source"
    given, source = job.inputs.get("painting"), params.config.source
    file, origin, sha256 = local_or_cached(given, source, params.config.sha256, setting)
    picture = read_rgb(file)
    short, long = sorted(picture.shape[1:])
    if long > params.long_side_px:
        picture = read_rgb(file, short_side=params.long_side_px * short // long)
    content = encode_png(picture)
    (job.output / "painting.png").write_bytes(content)
    card = {
        "name": params.name,
        "origin": DRAWN if source == DRAWN else origin,
        "origin_sha256": sha256,
        "sha256": hashlib.sha256(content).hexdigest(),
        "width_px": picture.shape[2],
        "height_px": picture.shape[1],
    }
    _write_card(job, card)


# --- weights ---


@dataclass(frozen=True)
class NormalizationConfig:
    """Settings of the measurement of mean activations, with average pooling."""

    crops: Annotated[int, Ge(1)] = 256
    """Number of random crops, taken from the photos in turn. With 96 crops of 36 COCO photos, a channel's
    mean over other crops differed from one by 2 % (shallow layers) to 13 % (deepest layer), in the median."""
    size_px: Annotated[int, Ge(32)] = 224
    """Side of the square crops, in pixels."""
    min_mean: Annotated[float, Gt(0), Le(1)] = 0.05
    """Lower bound of a channel's mean activation, relative to the layer's mean: a filter that fires more
    rarely is amplified only as if it had this mean. On COCO photos, none of VGG16's 4,224 channels was below
    it, one of VGG19's 5,504, and seven of AlexNet's 1,152. It is relative because the layers' means range
    from 0.05 to 260."""


@dataclass(frozen=True)
class WeightsParams:
    """The weights to fetch, and their source."""

    backbone: BackboneName | Literal["lpips"]
    source: WeightsSource
    normalization: NormalizationConfig
    """LPIPS' heads, which come from the package whatever the source, aren't normalised."""


@per_job
def fetch_weights(job: Job) -> Iterator[Event]:
    """Fetch a job's weights (:class:`WeightsParams`).

    Inputs: `photos`, a directory for :class:`PhotoSet`. For a backbone, the output gets
    `weights.safetensors`, the trained values, and `normalized.safetensors`, the values after
    :func:`~singleshot.style.backbones.normalize_activations`; both are for
    :func:`~singleshot.style.backbones.load_backbone`. For `lpips`, it gets `heads.safetensors`: a weight for
    each channel (C), under names like `vgg16.relu1_2`. In both cases it gets `card.json`, which says how a
    backbone was normalised: for each of the `layers` its `channels`, their `mean` and `smallest` mean
    activation before, and how many are `clamped`: below the bound, so that their mean stays below one.
    Metrics are the means before normalisation, with the layer's depth as step.

    Raises:
        UserError: the weights can't be fetched or are damaged, or there are no photos.
    """
    params: WeightsParams = job.params
    normalization = None
    if params.backbone == "lpips":
        heads, origin = read_lpips_heads()
        save_file(heads, job.output / "heads.safetensors")
    else:
        backbone, origin = read_backbone(params.backbone, params.source)
        save_backbone(backbone, job.output / "weights.safetensors")
        normalization = _normalize(job)
        for depth, layer in enumerate(normalization["layers"].values(), start=1):
            names = {"mean": "mean", "smallest_mean": "smallest", "clamped": "clamped"}
            yield Metrics(depth, {name: layer[own] for name, own in names.items()})
    _write_card(job, {"name": params.backbone, "origin": asdict(origin), "normalization": normalization})


def _normalize(job: Job) -> dict[str, Any]:
    config: NormalizationConfig = job.params.normalization
    photos = PhotoSet.open(job.inputs["photos"])
    backbone = load_backbone(job.output / "weights.safetensors", pooling="average").to(job.device)
    crops = (
        photos.batch(SEED, i, 1, config.size_px, augment=True).to(job.device) for i in range(config.crops)
    )
    normalized, means = normalize_activations(backbone, crops, config.min_mean)
    save_backbone(normalized, job.output / "normalized.safetensors")
    layers: dict[str, dict[str, Any]] = {}
    for layer, μ in means.items():
        clamped = int((at_least(config.min_mean, μ) > μ).sum())
        statistics = {"channels": len(μ), "mean": float(μ.mean()), "smallest": float(μ.min())}
        layers[layer] = statistics | {"clamped": clamped}
    clamped = sum(layer["clamped"] for layer in layers.values())
    return {"photos": len(photos), **asdict(config), "clamped": clamped, "layers": layers}
