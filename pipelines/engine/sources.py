"""The code behind a task: its source files, and the third-party packages that these import."""

import functools
import importlib.metadata
import importlib.util
import modulefinder
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import grimp

from pipelines.engine.processes import interrupted_later
from singleshot.errors import UserError
from singleshot.io.whole_file import sha256_of


@functools.cache
def _own_packages(package: str) -> tuple[str, ...]:
    """`package`, and those of its imports, direct or not, that are ours like it.

    Ours is what lies in the same folder and was installed by the same wheel, or by none, as in a checkout.
    Leftovers of `pip install .` in a checkout, and editable installs elsewhere, don't count as wheels.
    """
    spec = importlib.util.find_spec(package)
    assert spec
    assert spec.origin
    folder = Path(spec.origin).parents[1]
    wheels = defaultdict[str, set[str]](set)
    for distribution in importlib.metadata.distributions(path=[str(folder)]):
        if distribution.read_text("RECORD") is not None:
            for file in distribution.files or ():
                wheels[file.parts[0]].add(distribution.name)
    own, new = set[str](), {package}
    while new:
        own |= new
        beside = {name for name in _build(*sorted(own)).modules if (folder / name / "__init__.py").exists()}
        new = {name for name in beside - own if name not in wheels or wheels[name] & wheels[package]}
    return tuple(sorted(own))


@functools.cache
def _build(*packages: str) -> grimp.ImportGraph:
    with interrupted_later():  # grimp's Rust code panics otherwise
        return grimp.build_graph(*packages, include_external_packages=True, cache_dir=None)


@functools.cache
def _imported(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """`module` with its imports, direct or not: first our own, then other people's.

    Raises:
        UserError: there is no such module.
    """
    spec = importlib.util.find_spec(_top(module))
    if spec is None or spec.origin is None:
        raise UserError(f"{module}: no such module; put it where `python -m pipelines` is run, or install it")
    if spec.submodule_search_locations is None:  # a file beside the packages, e.g. with an environment
        finder = modulefinder.ModuleFinder([str(Path(spec.origin).parent)])
        finder.import_hook(module)
        own = {name for name, found in finder.modules.items() if getattr(found, "__file__", None)}
        return frozenset(own), frozenset(map(_top, finder.any_missing()))
    packages = _own_packages(_top(module))
    imported = _build(*packages).find_upstream_modules(module) | {module}
    own = {name for name in imported if _top(name) in packages}
    return frozenset(own), frozenset(imported - own)


@functools.cache
def source_closure(module: str) -> tuple[str, ...]:
    """`module`, its direct and indirect imports from our own packages, and their parent packages; sorted."""
    own, _ = _imported(module)
    packages = {name.rsplit(".", depth)[0] for name in own for depth in range(1, name.count(".") + 1)}
    return tuple(sorted(own | packages))


@functools.cache
def source_digests(*modules: str) -> Mapping[str, str]:
    """SHA-256 of each source file of the import closure of `modules`, by the module's name."""
    closure = {name for module in modules for name in source_closure(module)}
    return {name: _source_digest(name) for name in sorted(closure)}


@functools.cache
def _source_digest(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec
    assert spec.origin
    return sha256_of(Path(spec.origin))


@functools.cache
def package_versions(*modules: str) -> Mapping[str, str]:
    """Public versions of the installed packages that the import closure of `modules` imports, by name.

    The local part of a version is left out: `2.13.0+cpu` is a different build of the same code. Packages that
    are not installed, e.g. those of optional runtimes, are left out too.
    """
    return versions_of(frozenset[str]().union(*(_imported(module)[1] for module in modules)))


_distributions = functools.cache(importlib.metadata.packages_distributions)


def versions_of(modules: frozenset[str]) -> dict[str, str]:
    """Public versions of the installed packages that provide the top modules among `modules`."""
    names = {name for module in modules for name in _distributions().get(module, ())}
    return {name: public_version(name) for name in sorted(names)}


@functools.cache
def public_version(package: str) -> str:
    """The installed version of a package, without its local part.

    Raises:
        PackageNotFoundError: it is not installed.
    """
    return importlib.metadata.version(package).partition("+")[0]


def check_packages(wanted: Mapping[str, str]) -> None:
    """Check that this machine would compute a cell with the packages that are in its digest.

    Raises:
        UserError: a package has a different version here, or is missing.
    """
    for name, version in wanted.items():
        try:
            here = public_version(name)
        except importlib.metadata.PackageNotFoundError:
            here = "missing"
        if here != version:
            raise UserError(
                f"{name} is {here} on a worker, and {version} where the run was started; install the same "
                "requirements.lock on all machines"
            )


def _top(module: str) -> str:
    return module.partition(".")[0]
