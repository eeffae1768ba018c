"""The Python environment for TensorFlow; `python -m singleshot.export.environment` builds it.

onnx2tf pins versions that conflict with this project's, so it has a Python environment of its own, in the
user's cache. The environment is built only on request, because it takes 2.6 GB of disk.
"""

import hashlib
import shutil
import sys
import time
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from singleshot.errors import UserError
from singleshot.io.user_cache import user_cache
from singleshot.io.uv import run_uv

LOCK_FILE = Path(__file__).resolve().parents[2] / "requirements-tensorflow.lock"
COMPLETE = "complete"
"""A file in a complete environment, which can't be built elsewhere and moved: its programs name its path."""


def tensorflow_python() -> Path | None:
    """The interpreter of the environment that the lock file describes; None if it isn't built."""
    directory = _directory()
    return directory / "bin" / "python" if (directory / COMPLETE).is_file() else None


def build_tensorflow_environment() -> Path:
    """Build the environment unless it is there, and return its interpreter.

    Raises:
        UserError: uv can't install the packages in the lock file, there is no disk space for them, or the
            cache can't be written.
    """
    directory = _directory()
    user_cache(directory.parent.name)
    with FileLock(f"{directory}.lock"):
        if python := tensorflow_python():
            return python
        shutil.rmtree(directory, ignore_errors=True)  # what an interrupted build left
        python = directory / "bin" / "python"
        _run("venv", "--quiet", "--python", sys.executable, str(directory))
        _run("pip", "install", "--python", str(python), "--requirements", str(LOCK_FILE))
        (directory / COMPLETE).touch()
        return python


def _directory() -> Path:
    digest = hashlib.sha256(LOCK_FILE.read_bytes()).hexdigest()
    return user_cache_path("singleshot") / "environments" / f"tensorflow-{digest[:16]}"


def _run(*arguments: str) -> None:
    """Run uv, whose progress and errors the user sees."""
    if not run_uv(arguments):
        raise UserError(
            f"{LOCK_FILE.name}: uv can't install it; check the package index and the disk space, "
            "then run `make compilers` again"
        )


def main() -> int:
    """Build the environment unless it is there, and say where it is."""
    if not tensorflow_python():
        print(f"building {_directory()}: 2.6 GB, about 2 minutes …", flush=True)
    started = time.monotonic()
    try:
        python = build_tensorflow_environment()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{python} is ready after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
