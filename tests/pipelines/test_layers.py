"""The contracts of pyproject.toml, each broken once in a copy of the code."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = "Layers of pipelines"
SCIENCE = "The engine knows no science: of tasks it imports job, errors and hashing alone"
MLFLOW = "Only tracking and the log of graphs speak to MLflow"
IMPORTED_BY_THE_ENGINE = {"job", "errors"}
SCIENCES = {
    f"tasks.{path.stem}"
    for path in (ROOT / "tasks").iterdir()
    if path.stem not in {"__init__", "__pycache__"} | IMPORTED_BY_THE_ENGINE
}


@pytest.fixture
def code(tmp_path):
    """A copy of the code and its contracts."""
    for package in ("tasks", "pipelines"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def broken_contracts(code):
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=code, capture_output=True, text=True)
    broken = {line.partition(" BROKEN")[0] for line in done.stdout.splitlines() if " BROKEN" in line}
    assert done.returncode == bool(broken), done.stdout + done.stderr
    return broken


def test_the_code_keeps_every_contract(code):
    assert broken_contracts(code) == set()


@pytest.mark.parametrize(
    ("importer", "imported", "contract"),
    [
        ("engine/lifecycle.py", "pipelines.config.serving", LAYERS),
        ("engine/lifecycle.py", "pipelines.catalog.paths", LAYERS),
        ("engine/lifecycle.py", "pipelines.stages.prune", LAYERS),
        ("engine/lifecycle.py", "pipelines.serving.limits", LAYERS),
        ("config/serving.py", "pipelines.catalog.paths", LAYERS),
        ("catalog/paths.py", "pipelines.stages.prune", LAYERS),
        ("catalog/paths.py", "pipelines.serving.limits", LAYERS),
        ("stages/prune.py", "pipelines.serving.limits", LAYERS),
        ("serving/limits.py", "pipelines.stages.prune", LAYERS),
        ("serving/limits.py", "pipelines.cli.pack", LAYERS),
        ("stages/prune.py", "pipelines.stages.sizes", "Stages meet only through files"),
        ("stages/prune.py", "mlflow", MLFLOW),
        *(("engine/lifecycle.py", science, SCIENCE) for science in sorted(SCIENCES)),
        ("engine/lifecycle.py", "tasks.data.tables", SCIENCE),
    ],
)
def test_an_import_against_the_layers_is_refused(code, importer, imported, contract):
    with (code / "pipelines" / importer).open("a") as file:
        file.write(f"\nimport {imported}\n")
    assert contract in broken_contracts(code)


def test_a_new_package_of_pipelines_needs_its_layer(code):
    (code / "pipelines/more").mkdir()
    (code / "pipelines/more/__init__.py").touch()
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=code,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "pipelines.more" in done.stdout
