"""SHA-256 of files and of values."""

import hashlib
import json
from pathlib import Path


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_value(value: object) -> str:
    """SHA-256 of a value that JSON can hold, in hexadecimal, regardless of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
