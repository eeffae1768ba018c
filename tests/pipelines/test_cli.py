import shutil
import subprocess
import sys

import pytest
import typer
from checkouts import ROOT
from command_lines import assert_help_tells_all, assert_one_line, runner

import pipelines.__main__ as command_line
from pipelines.config.params import compose

COMMANDS = typer.main.get_command(command_line.app).commands


@pytest.fixture
def run(monkeypatch, capsys):
    return runner(command_line.main, "python -m pipelines", monkeypatch, capsys)


def test_every_command_tells_of_each_of_its_options(run):
    assert_help_tells_all(run, COMMANDS)
    status, _, error = run("agents", "--no-such-option")
    assert (status, "Usage: " in error) == (2, True)


def test_a_mistake_of_the_configuration_is_one_line(run, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "experts").symlink_to(ROOT / "experts")
    monkeypatch.chdir(tmp_path)
    params = tmp_path / "params.yaml"
    compose(["profile=smoke", "executor=local"])
    before = params.read_bytes()
    assert_one_line(run("params", "profle=smoke"), "conf: no key profle", "did you mean profile?")
    assert params.read_bytes() == before
    painting = "style.paintings.sources.swirls.source=/no/painting.jpg"
    assert run("params", "profile=smoke", painting)[0] == 0
    assert_one_line(run("check-config"), "/no/painting.jpg: no such file", "paintings/swirls")
    params.unlink()
    assert_one_line(run("agents"), "params.yaml", "make params")


def test_a_python_without_the_packages_is_told_how_to_get_them():
    """Such as the system's, which has none with the option -S."""
    command = [sys.executable, "-S", "-m", "pipelines", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert_one_line((done.returncode, done.stdout, done.stderr), "has no package", "make install")
