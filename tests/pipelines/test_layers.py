"""The contracts of pyproject.toml, each broken once in a copy of the code."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = "Layers of pipelines"
SCIENCE = "The engine knows no science"
ORDER = "Layers: pipelines over tasks over the library"
LIBRARY = "The library: export over the sciences over what they share"
PURE = "Library and tasks know no orchestration"
MLFLOW = "Only tracking and the log of graphs speak to MLflow"
SCIENCES = {
    f"singleshot.{path.stem}"
    for path in (ROOT / "singleshot").iterdir()
    if path.stem not in {"__init__", "__pycache__", "py", "errors", "secrets"}
}


@pytest.fixture
def code(tmp_path):
    """A copy of the code and its contracts."""
    for package in ("singleshot", "tasks", "pipelines"):
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
        ("pipelines/engine/processes.py", "pipelines.config.serving", LAYERS),
        ("pipelines/engine/processes.py", "pipelines.catalog.paths", LAYERS),
        ("pipelines/engine/processes.py", "pipelines.stages.agents", LAYERS),
        ("pipelines/engine/processes.py", "pipelines.serving.limits", LAYERS),
        ("pipelines/config/serving.py", "pipelines.catalog.paths", LAYERS),
        ("pipelines/catalog/paths.py", "pipelines.stages.agents", LAYERS),
        ("pipelines/catalog/paths.py", "pipelines.serving.limits", LAYERS),
        ("pipelines/stages/agents.py", "pipelines.serving.limits", LAYERS),
        ("pipelines/serving/limits.py", "pipelines.stages.agents", LAYERS),
        ("pipelines/serving/limits.py", "pipelines.cli.pack", LAYERS),
        ("pipelines/stages/agents.py", "pipelines.stages.styles", "Stages meet only through files"),
        ("pipelines/stages/agents.py", "mlflow", MLFLOW),
        ("tasks/prune_agent.py", "pipelines.engine.cells", ORDER),
        ("singleshot/pruning/masks.py", "tasks.job", ORDER),
        ("singleshot/pruning/masks.py", "singleshot.rl.agents", LIBRARY),
        ("singleshot/rl/agents.py", "singleshot.style.losses", LIBRARY),
        ("singleshot/rl/agents.py", "singleshot.export.parity", LIBRARY),
        ("singleshot/errors.py", "dvc", PURE),
        ("tasks/job.py", "ray", PURE),
        ("tasks/job.py", "mlflow", PURE),
        *(("pipelines/engine/processes.py", science, SCIENCE) for science in sorted(SCIENCES)),
        ("pipelines/engine/processes.py", "tasks.tables", SCIENCE),
    ],
)
def test_an_import_against_the_layers_is_refused(code, importer, imported, contract):
    with (code / importer).open("a") as file:
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
