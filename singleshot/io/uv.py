"""uv in the version that requirements.lock pins: `python -m singleshot.io.uv pip install -r FILE`.

uv installs packages in a fraction of pip's time, shows its progress, and verifies every hash in a lock file.
uv itself is installed with pip, which verifies its hash. uv reads none of pip's settings, so the indexes,
file locations and certificates configured for pip are passed on to it. This module uses only the standard
library, as nothing else is installed yet.
"""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from singleshot.errors import UserError

LOCK_FILE = Path(__file__).resolve().parents[1] / "requirements.lock"

_VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "proxy": ("ALL_PROXY", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
}
"""uv's variable for each of pip's settings, and its separator of several values (pip's is a space)."""


def run_uv(arguments: Sequence[str]) -> bool:
    """Run `uv` with these arguments for this Python's environment, and return whether it succeeded.

    It writes to this process's standard output and error. uv's own variables take precedence over pip's
    settings.

    Raises:
        UserError: pip can't fetch uv.
    """
    _fetch()
    environment = {**_settings_of_pip(), **os.environ, "VIRTUAL_ENV": sys.prefix}
    return subprocess.run([_program(), *arguments], env=environment, check=False).returncode == 0


def _program() -> Path:
    return Path(sys.executable).with_name("uv")


def _fetch() -> None:
    """Install uv with pip, unless the pinned version is already installed."""
    pinned = re.search(r"^uv==(\S+)( \\\n +--hash=\S+)+", LOCK_FILE.read_text(), re.MULTILINE)
    assert pinned is not None, f"{LOCK_FILE} has no uv"
    if _program().exists() and importlib.metadata.version("uv") == pinned[1]:
        return
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(pinned[0])
        requirements.flush()
        done = _pip("install", "--quiet", "--no-deps", "--require-hashes", "--requirement", requirements.name)
    if done.returncode:
        errors = re.findall(r"^ERROR: (.+)", done.stderr, re.MULTILINE) or done.stderr.splitlines()
        raise UserError(
            f"uv {pinned[1]}, which installs everything else: pip can't fetch it ({' '.join(errors[-1:])}); "
            "check pip's index and the network"
        )


def _settings_of_pip() -> dict[str, str]:
    """pip's settings, from its files and the environment, as the variables that uv reads."""
    lines = _pip("config", "list").stdout.splitlines()
    settings = {name: ast.literal_eval(value).split() for name, _, value in (x.partition("=") for x in lines)}
    found = {}
    for section in ("global.", "install.", ":env:."):  # later non-empty ones take precedence
        for key, (variable, separator) in _VARIABLES.items():
            if values := settings.get(section + key):
                found[variable] = separator.join(values)
    if "UV_INDEX" in found:
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip does: the newest version on any index
    return found


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> int:
    """Run uv with the arguments of the command line."""
    try:
        return 0 if run_uv(sys.argv[1:]) else 1
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
