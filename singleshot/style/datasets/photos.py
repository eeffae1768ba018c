"""Photos to train on and to stylise, read from the archives that `fetch_photos` packs."""

import io
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Generator, Tensor
from torch.nn.functional import interpolate

from singleshot.errors import UserError
from singleshot.io.images import luma, middle, read_rgb
from singleshot.random_streams import stream

ARCHIVE = "photos.zip"
AREA = (0.25, 1.0)
"""Range of the area of an augmented crop, relative to the largest square in its photo."""
ASPECT = (0.8, 1.25)
"""Range of width over height of an augmented crop, before it is made square."""
JITTER = (0.8, 1.2)
"""Range of the factors of brightness, contrast and saturation: mild, so that content stays what it is."""


class PhotoSet:
    """Photos in the order of their names, whichever archives they are in."""

    def __init__(self, archives: dict[str, Path]):
        """`archives` are the archives of the photos, by the photos' names."""
        self._archives = archives
        self._opened: dict[tuple[int, Path], zipfile.ZipFile] = {}
        """Open archives by process, as a fork must not share them."""
        self.names: Sequence[str] = tuple(sorted(archives))

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, Path]]]:
        return type(self), (self._archives,)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """All photos in the `photos.zip` of `directory` and of the directories in it.

        Raises:
            UserError: there is no such archive, one is damaged, or two have a photo of one name.
        """
        archives = sorted(directory.rglob(ARCHIVE))
        if not archives:
            raise UserError(f"{directory}: no {ARCHIVE} in it; pack photos into it")
        members: dict[str, Path] = {}
        for archive in archives:
            try:
                with zipfile.ZipFile(archive) as file:
                    found = {name.removesuffix(".jpg"): archive for name in file.namelist()}
            except Exception as error:  # BadZipFile, UnicodeDecodeError, NotImplementedError, struct.error, …
                raise _damaged(archive) from error
            if twice := members.keys() & found.keys():
                raise UserError(f"{archive}: another archive in {directory} has {min(twice)} too; remove one")
            members |= found
        return cls(members)

    def __len__(self) -> int:
        return len(self.names)

    def read(self, name: str, *, short_side: int | None = None) -> Tensor:
        """The whole photo (3, H, W), scaled to `short_side` pixels; None keeps its size.

        Raises UserError, with the known names, if there is no photo of that name.
        """
        if name not in self._archives:
            raise UserError(f"no photo {name!r}; known are {', '.join(self.names[:20])}")
        archive = self._archives[name]
        key = os.getpid(), archive
        try:
            if key not in self._opened:
                self._opened[key] = zipfile.ZipFile(archive)
            content = self._opened[key].read(f"{name}.jpg")
        except Exception as error:  # also OSError, zlib.error, …
            raise _damaged(archive) from error
        return read_rgb(io.BytesIO(content), short_side=short_side)

    def crop(self, index: int, size: int, generator: Generator, augment: bool) -> Tensor:
        """A square (3, size, size) of photo `index` (of `names`).

        Without `augment`, it is made as in the paper (section IV-B, step 8): the photo's short side is scaled
        to `size` and the centre is cut out; the generator isn't used. With `augment`, it is a random part,
        mirrored or not, in slightly different light and colour, all drawn from `generator`, so that a handful
        of photos suffice.
        """
        name = self.names[index]
        if augment:
            return _jittered(_part(self.read(name), size, generator), generator)
        return middle(self.read(name, short_side=size), size)

    def batch(self, seed: int, step: int, batch_size: int, size: int, augment: bool) -> Tensor:
        """Batch number `step` (from 0) of a training: (batch_size, 3, size, size).

        The batch depends only on the arguments and the set, so that training can resume at any step without
        the state of a sampler. Each epoch is a new permutation of the photos; a batch may contain the end
        of one epoch and the beginning of the next.
        """
        crops = []
        for position in range(step * batch_size, (step + 1) * batch_size):
            epoch, i = divmod(position, len(self))
            permutation = torch.randperm(len(self), generator=stream(seed, 0, epoch, bits=64))
            generator = stream(seed, 1, position, bits=64)
            crops.append(self.crop(int(permutation[i]), size, generator, augment))
        return torch.stack(crops)


def _damaged(archive: Path) -> UserError:
    return UserError(f"{archive}: damaged; make it again")


def _uniform(low: float, high: float, generator: Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))


def _part(photo: Tensor, size: int, generator: Generator) -> Tensor:
    _, height, width = photo.shape
    side = min(height, width) * _uniform(*AREA, generator) ** 0.5
    stretch = _uniform(*ASPECT, generator) ** 0.5
    h, w = min(height, round(side / stretch)), min(width, round(side * stretch))
    top = int(_uniform(0, height - h + 1, generator))
    left = int(_uniform(0, width - w + 1, generator))
    crop = photo[None, :, top : top + h, left : left + w]
    crop = interpolate(crop, (size, size), mode="bilinear", antialias=True)[0]
    return crop.flip(-1) if _uniform(0, 1, generator) < 0.5 else crop


def _jittered(picture: Tensor, generator: Generator) -> Tensor:
    brightness, contrast, saturation = (_uniform(*JITTER, generator) for _ in range(3))
    picture = picture * brightness
    grey = luma(picture)
    picture = grey + saturation * (picture - grey)
    mean = grey.mean()
    return (mean + contrast * (picture - mean)).clamp(0, 1)
