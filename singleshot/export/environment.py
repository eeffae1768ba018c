"""The Python environment for TensorFlow. `make compilers` builds it where `python -m` this module says.

onnx2tf pins versions that conflict with this project's, so it has its own Python environment, in the
user's cache. The environment is built only on request, because it takes 2.6 GB of disk.
"""

import hashlib
from pathlib import Path

from platformdirs import user_cache_path

LOCK_FILE = Path(__file__).resolve().parents[2] / "requirements-tensorflow.lock"


def directory() -> Path:
    """Where the environment that the lock file describes is, or is to be built."""
    digest = hashlib.sha256(LOCK_FILE.read_bytes()).hexdigest()
    return user_cache_path("singleshot") / "environments" / f"tensorflow-{digest[:16]}"


def tensorflow_python() -> Path | None:
    """The environment's interpreter; None unless it is built to its end, where a file `complete` is left."""
    return directory() / "bin" / "python" if (directory() / "complete").is_file() else None


if __name__ == "__main__":
    print(directory())
