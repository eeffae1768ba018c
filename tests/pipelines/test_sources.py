"""What of the code is in a cell's digest: source files, and the packages that they import."""

import importlib
import importlib.metadata
import sys

import pytest
from toy_tasks.work import SumParams

from pipelines.engine import sources
from pipelines.engine.cells import Cell
from singleshot.errors import UserError
from singleshot.rl.environments import Environment

TASK = """
from toy_tasks.work import add_up

from scratch_package import used

def task(jobs):
    import far_away.deep
    yield from add_up(jobs)
"""


class Code:
    """A package with a task, and packages that it may import, which a test edits and upgrades."""

    def __init__(self, directory):
        self.directory = directory
        self.edit("__init__", "")
        self.edit("used", "X = 1")
        self.edit("unused", "import nearby")
        self.edit("work", TASK)
        self.install("Far-Away", "far_away", "1.0")
        self.install("nearby", "nearby", "1.0")

    def edit(self, module, source):
        file = self.directory / "scratch_package" / f"{module}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(source + "\n")

    def install(self, package, module, version):
        (self.directory / module).mkdir(exist_ok=True)
        (self.directory / module / "__init__.py").touch()
        (self.directory / module / "deep.py").touch()
        record = self.directory / f"{module}-0.dist-info"
        record.mkdir(exist_ok=True)
        (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (record / "RECORD").write_text(f"{module}/__init__.py,,\n{module}/deep.py,,\n")

    def cell(self, modules=()):
        """As a new process sees it."""
        for name in vars(sources).values():
            getattr(name, "cache_clear", lambda: None)()
        task = importlib.import_module("scratch_package.work").task
        return Cell("sum", task, SumParams(1), modules=modules)


@pytest.fixture
def code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    yield Code(tmp_path)
    for name in [name for name in sys.modules if name.startswith("scratch_package")]:
        del sys.modules[name]


def test_source_closure_is_what_is_imported_and_nothing_else():
    closure = sources.source_closure("toy_tasks.work")
    assert set(closure) == {"toy_tasks", "toy_tasks.constants", "toy_tasks.work"}


def test_what_most_tasks_do_not_use_computes_no_agent_again():
    """A new pruner, another storage format, a new version of a downloader."""
    masks, formats = "singleshot.pruning.masks", "singleshot.sparse.formats"
    assert masks in sources.source_closure("tasks.prune_agent")
    assert formats in sources.source_closure("tasks.measure_sizes")
    assert "singleshot.pruning.pruners.snip" not in sources.source_closure("tasks.prune_agent")
    assert masks not in sources.source_closure("tasks.train_agents")
    for task in ("tasks.animate", "tasks.quantize_agent"):
        assert formats not in sources.source_closure(task)
    for task in ("tasks.prune_agent", "tasks.train_agents"):
        assert not {"pooch", "requests"} & sources.package_versions(task).keys()


def test_an_edited_import_changes_the_digest_and_an_unrelated_file_does_not(code):
    before = code.cell().digest
    code.edit("unused", "Y = 2")
    assert code.cell().digest == before
    code.edit("used", "X = 2")
    assert code.cell().digest != before


def test_an_upgraded_import_changes_the_digest_and_another_build_or_package_does_not(code):
    before = code.cell().digest
    code.install("nearby", "nearby", "2.0")
    (code.directory / "far_away/deep.py").write_text("# as in site-packages, where it is not our source\n")
    code.install("Far-Away", "far_away", "1.0+cpu")
    assert code.cell().digest == before
    code.install("Far-Away", "far_away", "1.1")
    assert code.cell().digest != before


def test_a_library_that_was_installed_from_the_checkout_is_still_source(code):
    library, record = code.directory / "own_library", code.directory / "own.egg-info"
    library.mkdir()
    (library / "__init__.py").write_text("X = 1\n")
    code.edit("used", "import own_library")
    before = code.cell().digest
    record.mkdir()  # as `pip install .` leaves it
    (record / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (record / "top_level.txt").write_text("own_library\n")
    (record / "SOURCES.txt").write_text("own_library/__init__.py\n")
    assert code.cell().digest == before
    (library / "__init__.py").write_text("X = 2\n")
    assert code.cell().digest != before


def test_an_edited_module_of_an_environment_of_one_s_own_changes_the_digest(code):
    """It is a file beside the packages; another one, which it imports, counts, too."""
    environment, helper = code.directory / "cart_of_mine.py", code.directory / "forces_of_mine.py"
    environment.write_text("import far_away.deep\nfrom forces_of_mine import F\n")
    helper.write_text("F = 2\n")
    modules = Environment("cart_of_mine:Cart-v0").modules
    before = code.cell(modules=modules)
    assert before.digest != code.cell().digest
    assert before.identity["packages"]["Far-Away"] == "1.0"
    helper.write_text("F = 3\n")
    assert code.cell(modules=modules).digest != before.digest
    with pytest.raises(UserError, match=r"^lost_of_mine: no such module"):
        _ = code.cell(modules=("lost_of_mine",)).digest


def test_packages_are_found_from_the_imports():
    """Those of training, as one knows them; `cv2` is a module of a package by another name."""
    assert "opencv-python-headless" in sources.package_versions("singleshot.style.apply.light")
    versions = sources.package_versions("tasks.train_agents")
    assert {"torch", "numpy", "gymnasium", "mujoco"} <= versions.keys()
    assert versions.keys().isdisjoint({"ray", "mlflow", "dvc", "pillow", "scikit-image"})
    assert versions["torch"] == importlib.metadata.version("torch").partition("+")[0]


def test_a_worker_with_other_packages_computes_nothing(code):
    wanted = code.cell().identity["packages"]
    sources.check_packages(wanted)
    code.install("Far-Away", "far_away", "0.9+cu12")
    sources.public_version.cache_clear()
    with pytest.raises(UserError, match=r"^Far-Away is 0\.9 .*1\.0"):
        sources.check_packages(wanted)
    with pytest.raises(UserError, match=r"^lost is missing"):
        sources.check_packages({"lost": "1.0"})
