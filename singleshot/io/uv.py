"""uv in the version that requirements.lock pins: `python -m singleshot.io.uv pip install -r FILE`.

uv installs packages in a fraction of pip's time, shows its progress, and verifies every hash in a lock file.
uv itself is installed with pip, which verifies its hash. Both install into the environment of this Python,
whatever the user's variables and pip's files say about the place. uv reads none of pip's settings, so the
indexes, file locations and certificates configured for pip are passed on to it. This module uses only the
standard library, as nothing else is installed yet.
"""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from singleshot.errors import UserError

LOCK_FILE = Path(__file__).resolve().parents[2] / "requirements.lock"

_SOURCES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "proxy": ("ALL_PROXY", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
}
"""uv's variable for each of pip's settings about sources, and its separator of several values (pip's is a
space)."""
_OF_PIP_ALONE = ("no-index", "timeout", "default-timeout", "retries", "cache-dir", "keyring-provider")
"""More settings that pip keeps when it fetches uv; all others, such as `target` and `user`, are left out."""
_IGNORED = ("UV_SYSTEM_PYTHON", "UV_WORKING_DIR", "UV_WORKING_DIRECTORY", "UV_PROJECT", "UV_REQUIRE_HASHES")
"""Variables with which uv would install elsewhere, read other files, or refuse PyTorch, whose lock has no
hash."""


def run_uv(arguments: Sequence[str]) -> bool:
    """Run `uv` with these arguments for this Python's environment, and return whether it succeeded.

    It writes to this process's standard output and error. uv's own variables take precedence over pip's
    settings, unless they name another environment.

    Raises:
        UserError: pip can't fetch uv.
    """
    settings = _settings_of_pip()
    _fetch(settings)
    own = {name: value for name, value in os.environ.items() if name not in _IGNORED}
    environment = {**_for_uv(settings), **own, "UV_PYTHON": sys.executable}
    return subprocess.run([_program(), *arguments], env=environment, check=False).returncode == 0


def _program() -> Path:
    return Path(sys.executable).with_name("uv")


def _fetch(settings: Mapping[str, str]) -> None:
    """Install uv with pip, unless the pinned version is already installed."""
    pinned = re.search(r"^uv==(\S+)( \\\n +--hash=\S+)+", LOCK_FILE.read_text("utf-8"), re.MULTILINE)
    assert pinned is not None, f"{LOCK_FILE} has no uv"
    if _program().exists() and importlib.metadata.version("uv") == pinned[1]:
        return
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {f"PIP_{name.upper().replace('-', '_')}": value for name, value in settings.items()}
    environment["PIP_CONFIG_FILE"] = os.devnull
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as requirements:
        requirements.write(pinned[0])
        requirements.flush()
        options = ("--quiet", "--no-deps", "--require-hashes", "--requirement", requirements.name)
        done = _pip("install", *options, environment=environment)
    if done.returncode:
        errors = re.findall(r"^ERROR: (.+)", done.stderr, re.MULTILINE) or done.stderr.splitlines()
        raise UserError(
            f"uv {pinned[1]}, which installs everything else: pip can't fetch it ({' '.join(errors[-1:])}); "
            "check pip's index and the network"
        )


def _settings_of_pip() -> dict[str, str]:
    """pip's settings about sources, from its files and the environment."""
    shown = dict.fromkeys(("PIP_USER", "PIP_GLOBAL", "PIP_SITE", "PIP_QUIET"), "0")  # all files, in full
    lines = _pip("config", "list", environment={**os.environ, **shown}).stdout.splitlines()
    settings = {name: ast.literal_eval(value) for name, _, value in (x.partition("=") for x in lines)}
    found = {}
    for section in ("global.", "install.", ":env:."):  # later non-empty ones take precedence
        for key in (*_SOURCES, *_OF_PIP_ALONE):
            if values := " ".join(settings.get(section + key, "").split()):
                found[key] = values
    return found


def _for_uv(settings: Mapping[str, str]) -> dict[str, str]:
    """The same settings as the variables that uv reads."""
    found = {
        variable: separator.join(settings[key].split())
        for key, (variable, separator) in _SOURCES.items()
        if key in settings
    }
    if "UV_INDEX" in found:
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip does: the newest version on any index
    return found


def _pip(*arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    # `--python`, as PIP_PYTHON may name another one.
    command = [sys.executable, "-m", "pip", "--python", sys.executable, "--disable-pip-version-check"]
    return subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def main() -> int:
    """Run uv with the arguments of the command line."""
    try:
        return 0 if run_uv(sys.argv[1:]) else 1
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
