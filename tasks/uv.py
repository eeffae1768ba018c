"""uv, in the version that requirements.lock pins: `python -m tasks.uv pip install -r requirements.lock`.

It installs in a fraction of pip's time, shows how far it is, and verifies each hash that a lock file has. pip
fetches it, verified too. uv reads none of pip's settings, so the index, the files and the certificates that
are configured for pip are handed on. By the standard library alone, as nothing else is installed yet.
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

from tasks.errors import UserError

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
"""uv's name of each of pip's settings, and what it has between several values; pip has spaces."""


def run_uv(arguments: Sequence[str]) -> bool:
    """Run `uv` with these arguments, for the environment that Python runs in; whether it succeeded.

    What it writes goes where this process writes. Variables that uv reads itself go before pip's settings.

    Raises:
        UserError: pip can't fetch uv.
    """
    _fetch()
    environment = {**_settings_of_pip(), **os.environ, "VIRTUAL_ENV": sys.prefix}
    return subprocess.run([_program(), *arguments], env=environment, check=False).returncode == 0


def _program() -> Path:
    return Path(sys.executable).with_name("uv")


def _fetch() -> None:
    """Let pip install uv unless it is there in the version that is pinned."""
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
            f"uv {pinned[1]}, which installs all else: pip can't fetch it ({' '.join(errors[-1:])}); "
            "see to pip's index and the network"
        )


def _settings_of_pip() -> dict[str, str]:
    """What pip is configured with, in files or the environment, as the variables that uv reads."""
    lines = _pip("config", "list").stdout.splitlines()
    settings = {name: ast.literal_eval(value).split() for name, _, value in (x.partition("=") for x in lines)}
    found = {}
    for section in ("global.", "install.", ":env:."):  # later ones go before, but for those that are empty
        for key, (variable, separator) in _VARIABLES.items():
            if values := settings.get(section + key):
                found[variable] = separator.join(values)
    if "UV_INDEX" in found:
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # pip's: the newest version that any index has
    return found


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> int:
    """Run uv as the command line says."""
    try:
        return 0 if run_uv(sys.argv[1:]) else 1
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
