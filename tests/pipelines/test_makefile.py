"""What the Makefile hands on, and when it makes its environment again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.config.params import load_config

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose environment is complete, and has this Python."""
    path = tmp_path / "check out"
    path.mkdir()
    shutil.copy(ROOT / "Makefile", path)
    for name in ("pipelines", "singleshot", "tasks", "conf", "dvc.yaml"):
        (path / name).symlink_to(ROOT / name)
    for name in ("requirements.lock", "requirements-dev.lock"):
        (path / name).touch()
    programs = path / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "python").chmod(0o755)
    (path / ".venv/pyvenv.cfg").write_text(f"command = {sys.executable} -m venv {path}/.venv\n")
    (path / ".venv/.installed").touch()
    return path


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Not those of a `make test` that runs the tests: this one would say that it is within another.
    outer = {"PROFILE", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    return subprocess.run(
        ["make", *arguments], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )


def test_values_reach_params_as_they_are_and_a_password_is_not_shown(checkout: Path) -> None:
    url, uri = "https://example.org/~a?part=$5&of=2;x=it", "http://me:wxyzzy@host"
    (checkout / "my own.yaml").write_text("profile: smoke\nexecutor: local\n")
    words = f"data@offline_rl.data=d4rl offline_rl.data.d4rl.Hopper.url={url}\n"
    words += f"\ntracking.uri={uri} tracking.experiment='a\\b c'\n"
    done = make(checkout, "params", f"SET={words}", "FROM=my own.yaml")
    assert done.returncode == 0, done.stderr
    config = load_config(checkout / "params.yaml")
    assert config.offline_rl.data.d4rl["Hopper"].url == url
    assert (config.profile, config.executor.kind) == ("smoke", "local")
    assert (config.tracking.uri, config.tracking.experiment) == (uri, "a\\b c")
    assert make(checkout, "params", "FROM=my own.yaml", "PROFILE=default").returncode == 0
    assert load_config(checkout / "params.yaml").profile == "default"
    wrong = make(checkout, "params", 'SET=tracking.uri=http://me:wxy"zzy@host')
    assert wrong.returncode != 0
    assert "error: SET: no closing quotation" in wrong.stderr
    assert "wxy" not in done.stdout + done.stderr + wrong.stdout + wrong.stderr


def made_again(checkout: Path) -> bool:
    planned = make(checkout, "-n", "test").stdout
    return "-m venv --clear .venv\n" in planned and "singleshot.io.uv pip install" in planned


def test_an_environment_of_no_use_is_made_again(checkout: Path) -> None:
    assert not made_again(checkout)
    python = checkout / ".venv/bin/python"
    python.rename(python.with_name("kept"))
    python.symlink_to("/an/interpreter/that/is/gone")
    assert made_again(checkout)
    python.unlink()
    python.with_name("kept").rename(python)
    assert not made_again(checkout)
    assert made_again(checkout.rename(checkout.with_name("renamed")))


def test_a_python_of_another_version_is_refused(checkout: Path, tmp_path: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = make(checkout, "install", f"PYTHON={old}")
    assert done.returncode != 0
    assert done.stderr.startswith(f"error: {old} is not Python 3.11, 3.12 or 3.13; ")
