"""The environment of TensorFlow: whole or absent, built once, and by nothing but its command."""

import subprocess
import sys
from pathlib import Path

import pytest

from singleshot.errors import UserError
from singleshot.export import environment


@pytest.fixture
def lock_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "requirements-tensorflow.lock"
    path.write_text("# nothing\n")
    monkeypatch.setattr(environment, "LOCK_FILE", path)
    return path


def _pretend(commands, *command):
    """In place of running it."""
    commands.append(command)
    environment._directory().mkdir(exist_ok=True)


def test_is_absent_until_built_and_then_an_environment_of_its_own(lock_file):
    assert environment.tensorflow_python() is None
    python = environment.build_tensorflow_environment()
    assert environment.tensorflow_python() == python
    prefix = subprocess.run(
        [python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert Path(prefix) == python.parents[1] != Path(sys.prefix)


def test_another_lock_file_is_another_environment(lock_file, monkeypatch):
    monkeypatch.setattr(environment, "_run", lambda *command: _pretend([], *command))
    first = environment.build_tensorflow_environment()
    lock_file.write_text("# something else\n", encoding="utf-8")
    assert environment.tensorflow_python() is None
    assert environment.build_tensorflow_environment() != first


def test_a_failed_build_says_why_and_leaves_nothing_to_run(lock_file, tmp_path, capfd):
    lock_file.write_text(f"{tmp_path}/no-such-package-1.0-py3-none-any.whl\n", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"requirements-tensorflow\.lock: uv can't install it; .*make compilers"
    ):
        environment.build_tensorflow_environment()
    assert environment.tensorflow_python() is None
    assert environment.main() == 1
    uvs, error = capfd.readouterr().err.rstrip().rsplit("\n", 1)
    assert "no-such-package" in uvs
    assert error.startswith("error: requirements-tensorflow.lock: ")


def test_remains_of_an_interrupted_build_are_not_taken_for_an_environment(lock_file, monkeypatch):
    def interrupted(*command):
        (environment._directory() / "bin").mkdir(parents=True)
        (environment._directory() / "bin" / "python").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(environment, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        environment.build_tensorflow_environment()
    assert environment.tensorflow_python() is None
    monkeypatch.setattr(environment, "_run", lambda *command: _pretend([], *command))
    python = environment.build_tensorflow_environment()
    assert not python.exists()  # the remains are gone; nothing was installed here in their place
