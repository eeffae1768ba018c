"""dvc.yaml against the code: what a stage reads and imports, it depends on."""

import json
from pathlib import Path, PurePosixPath

import pytest
import typer
import yaml

from pipelines.__main__ import app
from pipelines.cli.packages import list_packages
from pipelines.config.params import CONF, PARAMS, configuration, load_config
from pipelines.engine import sources
from pipelines.stages import STAGES, offline_rl
from singleshot.rl.agents import AGENT_FILE
from singleshot.rl.algorithm import AlgorithmConfig
from tasks.reporting.results import FILES, PROVENANCE

ROOT = Path(__file__).parents[2]
DVC = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
WITH_CELLS = [name for name in STAGES if STAGES[name].steps]


class PlannedError(Exception):
    """Raised where a step would start to compute."""


class Planner:
    """A step that keeps its cells instead of computing them."""

    def compute(self, cells, out=None, **_options):
        self.cells, self.out = list(cells), out
        raise PlannedError


class Watched:
    """A configuration that knows which of its sections were read."""

    def __init__(self, config):
        self.config = config

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self.config, name)


@pytest.fixture(scope="module")
def plans():
    """For each stage its steps, and what each would compute."""
    config = Watched(configuration("profile=smoke"))
    found = {}
    for stage in WITH_CELLS:
        found[stage] = []
        for step in STAGES[stage].load():
            planner, config.read = Planner(), set()
            with pytest.raises(PlannedError):
                step.run(planner, config)
            planner.read = config.read
            found[stage].append((step, planner))
    return found


def below(path, directories):
    return any(PurePosixPath(path).is_relative_to(directory) for directory in directories)


def outs(stage):
    for out in [*DVC[stage].get("outs", []), *DVC[stage].get("metrics", [])]:
        yield from [out] if isinstance(out, str) else out


def test_what_a_stages_cells_read_it_depends_on_or_has_made_itself(plans):
    for stage, steps in plans.items():
        made = []
        for step, planner in steps:
            for cell in planner.cells:
                for path in cell.inputs.values():  # those of the library are absolute
                    own = path.relative_to(ROOT) if path.is_absolute() else path
                    assert below(own.as_posix(), [*DVC[stage]["deps"], *made]), path
            out = [] if planner.out is None else [planner.out.as_posix()]
            tables = [table.as_posix() for table in step.experiment.tables]
            assert {*out, *tables, f"results/provenance/{stage}"} <= set(outs(stage))
            made += [*out, *tables, f"results/provenance/{stage}"]


def test_a_stage_depends_on_the_sections_that_it_reads_and_on_none_of_where_it_runs(plans):
    for stage, steps in plans.items():
        assert set(DVC[stage]["params"]) == set().union(*(planner.read for _, planner in steps))


def test_a_stage_depends_on_all_code_and_on_the_packages_in_its_digests(plans, tmp_path, monkeypatch):
    """So that DVC runs the stage after an edit, and after an upgrade of a package."""
    config = configuration("profile=smoke")
    monkeypatch.chdir(tmp_path)
    list_packages(config)
    for stage, steps in plans.items():
        packages = f"build/packages/{stage}.json"
        assert {"pipelines", "tasks", "singleshot", packages} <= set(DVC[stage]["deps"])
        listed = json.loads(Path(packages).read_text(encoding="utf-8"))
        for modules in {(cell.task.__module__, *cell.modules) for _, made in steps for cell in made.cells}:
            assert sources.package_versions(*modules).items() <= listed.items()


def test_an_agents_cells_have_the_modules_that_their_task_imports_by_name_in_their_digests(plans):
    """An edit of bcq.py would otherwise leave BCQ's agents as they were."""
    checked = set()
    for step, planner in (each for steps in plans.values() for each in steps):
        for cell in planner.cells:
            trains = isinstance(getattr(cell.params, "algorithm", None), AlgorithmConfig)
            opens = AGENT_FILE in {path.name for path in cell.inputs.values()} and step.name != "sizes"
            if trains or opens:
                assert f"singleshot.rl.algorithms.{cell.tags['algorithm']}" in cell.modules, step.name
                checked.add(step.name)
            if step.name == "prune":
                assert f"singleshot.pruning.pruners.{cell.tags['pruner']}" in cell.modules
    assert checked >= {"prune", "train", "quantize", "export_onnx", "benchmark"}


def test_each_seed_has_a_draw_of_the_data_of_its_own():
    config = configuration("profile=smoke", "offline_rl.sweep.seeds=[3,4,5]").offline_rl
    assert {cell.params.data.seed for cell in offline_rl.data_cells(config)} == {3, 4, 5}
    datasets = {seed: set() for seed in (3, 4, 5)}
    for agent in config.agents():
        datasets[agent.seed].add(offline_rl.train_cell(config, agent).inputs["dataset"])
    assert len(set.union(*datasets.values())) == sum(map(len, datasets.values())) == 3


def test_the_report_depends_on_all_that_its_page_shows():
    deps = [*DVC["report"]["deps"], *outs("report")]
    assert {f"results/provenance/{stage}" for stage in WITH_CELLS} <= set(deps)
    assert [pattern for pattern in FILES if pattern != PROVENANCE and not below(pattern, deps)] == []


def test_every_stage_has_its_command_and_waits_for_the_check_of_the_configuration():
    commands = typer.main.get_command(app).commands
    for stage, entry in DVC.items():
        assert entry["cmd"].removeprefix("python -m pipelines ") in commands
        assert stage not in WITH_CELLS or "build/config.ok" in entry["deps"]
    assert {CONF.as_posix(), PARAMS.as_posix()} <= set(DVC["config"]["deps"])
    assert load_config(ROOT / "params.yaml")
