"""uv, with the sources that pip is configured for: `python -m singleshot.io.uv pip install -r FILE`.

uv installs packages in a fraction of pip's time, shows its progress, and verifies every hash in a lock file.
It reads none of pip's settings, so the indexes, file locations and certificates configured for pip are passed
on to it. It installs into the environment of this Python. This module uses only the standard library and uv,
as nothing else is installed yet.
"""

import ast
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

SOURCES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
}
"""uv's variable for each of pip's settings about sources, and its separator of several values (pip's is a
space)."""


def run_uv(arguments: Sequence[str]) -> bool:
    """Run `uv` with these arguments for this Python's environment, and return whether it succeeded.

    It writes to this process's standard output and error. uv's own variables take precedence over pip's
    settings, except those that name another Python.
    """
    environment = settings_of_pip() | os.environ | {"UV_PYTHON": sys.executable}
    environment.pop("UV_SYSTEM_PYTHON", None)
    program = Path(sysconfig.get_path("scripts"), "uv")  # not imported: no cell depends on uv's version
    return subprocess.run([program, *arguments], env=environment, check=False).returncode == 0


def settings_of_pip() -> dict[str, str]:
    """pip's settings about sources, from its files and variables, as the variables that uv reads."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    settings = {name: ast.literal_eval(value) for name, _, value in (line.partition("=") for line in lines)}
    found = {}
    for section in ("global", "install", ":env:"):  # later ones take precedence
        for key, (variable, separator) in SOURCES.items():
            if values := settings.get(f"{section}.{key}", "").split():
                found[variable] = separator.join(values)
    if "UV_INDEX" in found:
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip does: the newest version on any index
    return found


if __name__ == "__main__":
    sys.exit(0 if run_uv(sys.argv[1:]) else 1)
