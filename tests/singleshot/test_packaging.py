"""The library as a package: what it needs is declared, and it works where it alone is installed."""

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import singleshot
from singleshot.io.uv import run_uv

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DRAWING = {"singleshot.rl.evaluation.drawing", "singleshot.io.h264"}
"""Of offline RL, only these need the pictures and videos of the extra `style`."""
COMPILED = {f"singleshot.sparse.{name}" for name in ("kernels", "perceptron", "vectors")}
"""Of sparse networks, those that train agents."""
ELSEWHERE = {
    *("tensorflow", "onnx2tf", "onnxsim", "iree", "sbx", "stable_baselines3"),
    *("llvmlite", "urllib3", "starlette", "_typeshed"),
}
"""Optional runtimes and trainers of experts, which environments of their own have; what Numba, requests and
FastAPI bring, and type checkers."""


def declared(*extras):
    """Names of the distributions that an installation with `extras` asks for."""
    lines = PROJECT["dependencies"] + [line for e in extras for line in PROJECT["optional-dependencies"][e]]
    return {canonicalize_name(Requirement(line).name) for line in lines}


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("singleshot", include_external_packages=True, cache_dir=None)


def undeclared(graph, names, *packages, without=frozenset()):
    """Modules that the modules in `packages` import, and that none of the distributions `names` brings."""
    own = [m for m in graph.modules if m.startswith(packages) and m not in without]
    modules = {m for name in own for m in graph.find_modules_directly_imported_by(name)}
    by_module = importlib.metadata.packages_distributions()
    return {
        m
        for m in modules - set(sys.stdlib_module_names) - ELSEWHERE
        if not m.startswith("singleshot") and not names & set(map(canonicalize_name, by_module.get(m, ())))
    }


def test_a_base_installation_has_what_pruning_imports(graph):
    assert declared() == {"numpy", "safetensors", "torch", "tqdm"}
    base = ("singleshot.pruning", "singleshot.sparse", "singleshot.errors", "singleshot.io.tensor_file")
    assert undeclared(graph, declared(), *base, without=COMPILED) == set()


def test_an_extra_has_what_its_package_imports(graph):
    runtimes = ["style", "export", "runtimes", "rl"]
    needed = {"rl": ["rl"], "sparse": ["rl"], "style": ["style"], "io": ["style", "export"]}
    needed |= {"export": runtimes, "serving": [*runtimes, "serve", "rl"], "command": ["rl", "style"]}
    for package, extras in needed.items():
        assert undeclared(graph, declared(*extras), f"singleshot.{package}", without=DRAWING) == set(), (
            package
        )


def test_importing_the_library_imports_nothing_heavy():
    code = "import singleshot, sys; print(sorted({'torch', 'numpy', 'gymnasium'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_only_what_there_is_can_be_asked_for():
    assert {"prune", "apply", "rl", "style", "export"} <= set(dir(singleshot))
    with pytest.raises(AttributeError, match="'singleshot' has no attribute 'prun'"):
        _ = singleshot.prun


@pytest.mark.parametrize(
    ("package", "names"), [(singleshot, dir(singleshot)), (singleshot.rl, singleshot.rl.NAMES)]
)
def test_type_checkers_know_what_is_imported_late(package, names):
    typed = Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    assert all(re.search(rf"( as {name}$|^{name}: |^class {name}\()", typed, re.MULTILINE) for name in names)


@pytest.mark.slow
def test_an_installed_library_needs_no_file_of_the_repository(tmp_path):
    """In an environment of its own, which shares this one's other packages, away from the checkout."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", ROOT]
    subprocess.run(install, check=True, cwd=tmp_path)
    site = next((tmp_path / "env/lib").glob("python*/site-packages"))
    (site / "shared.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    code = (
        "import singleshot, torch; "
        "model = torch.nn.Linear(10, 10); "
        "singleshot.apply(model, singleshot.prune(model, lambda m: m(torch.ones(2, 10)).sum(), 0.9)); "
        "print(singleshot.__version__, int((model.weight != 0).sum()), singleshot.__file__)"
    )
    done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    version, kept, file = done.stdout.split()
    assert (version, kept) == (PROJECT["version"], "10")
    assert Path(file).is_relative_to(tmp_path)
    assert (Path(file).parent / "py.typed").exists()
    assert not (site / "pipelines").exists()


@pytest.mark.slow
def test_the_oldest_versions_that_are_declared_pass_the_librarys_tests(tmp_path):
    """Of all but PyTorch, whose older wheels are gigabytes for GPUs; 2.7 was tried by hand."""
    tools = [
        "hypothesis",
        "mypy",
        "psutil",
        "pytest",
        "pytest-timeout",
        "pytest-xdist",
        "torch",
        "torchvision",
    ]
    locked = [f"{name}=={importlib.metadata.version(name)}" for name in tools]
    (tmp_path / "locked.txt").write_text("\n".join(locked))
    python = tmp_path / "env/bin/python"
    oldest = ["--resolution", "lowest-direct", "--override", str(tmp_path / "locked.txt")]
    assert run_uv(["venv", "--quiet", str(tmp_path / "env")])
    assert run_uv(
        ["pip", "install", "--quiet", "--python", str(python), *oldest, f"{ROOT}[rl,export]", *locked]
    )
    code = "import numpy; print(numpy.__version__)"
    assert subprocess.check_output([python, "-c", code], text=True).strip() == "2.0.0"
    own = ["tests/singleshot/pruning", "tests/singleshot/sparse", "tests/singleshot/rl/training"]
    command = [python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *own]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
