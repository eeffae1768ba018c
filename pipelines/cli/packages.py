"""The stage `packages`: the installed packages that each stage's code imports, so that DVC sees upgrades."""

import json
from collections.abc import Mapping
from pathlib import Path

import grimp

from pipelines.config.params import Config
from pipelines.engine.sources import package_versions, source_digests, versions_of
from pipelines.stages import STAGES
from singleshot.export import runtimes
from singleshot.export.runtimes import RUNTIMES, installed_version
from singleshot.rl import environments

PACKAGES = Path("build/packages")
RUNTIMES_HERE = Path("build/runtimes.json")


def list_packages(config: Config) -> None:
    """Write the versions of each stage's packages, and of the runtimes, which are only imported by name.

    The digests of users' own modules with environments are beside them, so that an edit of these is seen.
    """
    modules = {name for each in config.offline_rl.environments.values() for name in each.modules}
    own_environments = {**source_digests(*modules), **package_versions(*modules)}
    graph = grimp.build_graph(
        "pipelines", "tasks", "singleshot", include_external_packages=True, cache_dir=None
    )
    for name in graph.modules:
        if name.startswith(("pipelines.engine", "pipelines.config")):  # which compute nothing
            graph.remove_module(name)
    PACKAGES.mkdir(parents=True, exist_ok=True)
    versions: dict[Path, Mapping[str, str | None]] = {
        RUNTIMES_HERE: {name: installed_version(name) for name in RUNTIMES}
    }
    for name in STAGES:
        imported = set[str]().union(*map(graph.find_upstream_modules, STAGES[name].modules))
        if runtimes.__name__ in imported:  # and through it adapters, by name
            imported = imported.union(*(graph.find_upstream_modules(own.module) for own in RUNTIMES.values()))
        if imported:
            more = own_environments if environments.__name__ in imported else {}
            versions[PACKAGES / f"{name}.json"] = versions_of(frozenset(imported)) | more
    for path, own in versions.items():
        path.write_text(json.dumps(own, indent=1) + "\n", encoding="utf-8")
