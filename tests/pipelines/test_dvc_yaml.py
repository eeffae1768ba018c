"""dvc.yaml against the code: what a stage reads and imports, it depends on."""

import copy
import dataclasses
import functools
import importlib
import json
import tempfile
from fractions import Fraction
from pathlib import Path, PurePosixPath

import pydantic
import pytest
import torch
import typer
import yaml

from pipelines.catalog.stages import STAGES, STEPS, stage_of
from pipelines.cli.app import app
from pipelines.cli.packages import list_packages
from pipelines.config import params as config
from pipelines.config.params import Config, compose, load_config
from pipelines.engine import sources
from singleshot.errors import UserError
from singleshot.style.video.reader import probe
from tasks.make_clip import make_clip
from tasks.reporting.results import FILES, PROVENANCE

ROOT = Path(__file__).parents[2]
DVC = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
CHECKS = {"packages", "config", "register"}
"""Stages without cells."""
CODE = {"pipelines", "tasks", "singleshot"}
"""Packages of code, which a stage depends on as a whole: cells decide what is computed again."""
CONFIG = pydantic.TypeAdapter(Config)


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """The composed configuration as plain data."""
    params = tmp_path_factory.mktemp("conf") / "params.yaml"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        compose(["profile=smoke"], params)
    return yaml.safe_load(params.read_text())


class PlannedError(Exception):
    """Raised where a step would start to compute."""


class Planner:
    """A step that keeps its cells instead of computing them."""

    def compute(self, cells, out=None, **_options):
        self.cells, self.out = list(cells), out
        raise PlannedError


@functools.cache
def clip():
    """What a step that plans for a video would find in it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "clip.mp4"
        make_clip(torch.zeros(3, 48, 64), path, 0.4, Fraction(25), (64, 48))
        return probe(path)


def plan(step, values):
    planner = Planner()
    module = importlib.import_module(f"pipelines.stages.{step}")
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(module, "probe"):
            patch.setattr(module, "probe", lambda path: clip())
        with pytest.raises(PlannedError):
            module.run(planner, CONFIG.validate_python(values))
    return planner


def description(planner):
    """Everything of a plan that a result can depend on, but for the contents of inputs."""
    return {
        (
            cell.name,
            cell.task.__qualname__,
            repr(dataclasses.asdict(cell.params)),
            repr(sorted(cell.inputs.items())),
        )
        for cell in planner.cells
    }


def plans(stage, values):
    """The plans of a stage's steps."""
    return [plan(step, values) for step in STAGES[stage].steps]


def outcome(stage, values):
    """The descriptions of a stage's plans, or the reason why there are none."""
    try:
        return [description(planner) for planner in plans(stage, values)]
    except UserError as error:
        return str(error)


def leaves(values, prefix=()):
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*prefix, key))
        else:
            yield (*prefix, key)


OTHER = {
    "offline_rl.environments.Hopper.kwargs": {"reset_noise_scale": 0.01},
    "offline_rl.environments.Hopper.time_limit": 99,
    "offline_rl.environments.Hopper.reference_returns": [0.0, 1.0],
    "offline_rl.sweep.algorithms": ["bc"],
    "offline_rl.sweep.pruners": ["random"],
    "offline_rl.sweep.sparsities": [0.5],
    "offline_rl.data.source": None,  # of another source's own group
    "offline_rl.data.seed": 7,
    "offline_rl.data.minari": {"Hopper": "mujoco/hopper/expert-v0"},
    "offline_rl.data.d4rl": {"Hopper": {"url": "http://127.0.0.1/hopper.hdf5", "sha256": None}},
    "offline_rl.pruning.scope": "layer",
    "offline_rl.pruning.iterations": 7,
    "offline_rl.pruning.batch_size": 7,
    "offline_rl.pruning.normalize_states": True,
    "offline_rl.evaluation.final_episodes": 7,
    "offline_rl.execution": "masked",
    "offline_rl.quantization.values": ["fp16"],
    "deployment.export.seeds": [99],
    "profile": "another",
    "style.photos.path": "/data/photos",
    "style.photos.sha256": "0" * 64,
    "style.photos.limit": 7,
    "style.photos.held_out": ["coffee"],
    "style.samples.path": "/data/photos",
    "style.samples.held_out": ["coffee"],
    "style.samples.sha256": "0" * 64,
    "style.samples.limit": 7,
    "style.weights.source": "torchvision",
    "style.clip.photo": "coffee",
    "style.clip.fps": "25",
    "style.transfer.content": "coffee",
    "style.transfer.style": "waves",
    "style.transfer.settings.backbone": "alexnet",
    "style.transfer.settings.criterion": "l1",
    "style.transfer.settings.optimizer": "adam",
    "style.transfer.settings.initialization": "noise",
    "style.transfer.settings.learning_rate": 0.5,
    "style.transfer.settings.layer_weights": [0.1, 0.1, 0.1, 0.1, 0.1],
    "style.transfer.settings.precision": "float32",
    "style.training.styles": ["waves", "swirls"],
    "style.pruning.styles": [],
    "style.pruning.sparsities.snip": [0.5],
    "style.training.johnson.batches": 7,
    "style.training.johnson.precision": "float32",
    "style.training.style_weights": {"swirls": 7.0},
    "style.stylize.photos": ["coffee"],
    "style.stylize.large.photo": "coffee",
    "style.stylize.video": "/data/video.mp4",
    "style.stylize.precision": "float32",
    "style.quality.photos": ["coffee"],
    "style.quality.study": None,
    "style.speed.backbones": ["vgg16"],
    "deployment.classifier.weights": "random",
    "deployment.benchmark.runtimes": ["torch"],
    "deployment.benchmark.agents.environments": ["Walker2d"],
    "deployment.benchmark.agents.algorithms": ["bc"],
    "deployment.benchmark.agents.pruners": ["grasp"],
    "deployment.benchmark.agents.sparsities": [0],
    "deployment.benchmark.photos": ["coffee"],
} | {
    f"style.transfer.studies.{study}.{name}": value
    for study in ("backbones", "losses", "optimizers", "paintings")
    for name, value in {
        "backbones": ["vgg19", "vgg16"],
        "losses": ["l1"],
        "optimizers": ["adam"],
        "styles": ["waves"],
    }.items()
} | {
    f"style.paintings.sources.{name}.{key}": value
    for name in ("swirls", "waves", "mosaic")
    for key, value in {"source": "/data/painting.jpg", "sha256": "0" * 64}.items()
}  # fmt: skip


def changed(values, leaf):
    """The configuration with another value at one leaf."""
    name = ".".join(leaf)
    other = copy.deepcopy(values)
    at = other
    for key in leaf[:-1]:
        at = at[key]
    if name == "offline_rl.data.source":
        at |= {"source": "minari", "minari": OTHER["offline_rl.data.minari"]}
    elif name == "style.training.start":
        at |= {"start": "shipped", "johnson": at["johnson"] | {"width": 16}}
    elif name == "deployment.classifier.architecture":
        at |= {"architecture": "resnet50", "weights": "random"}
    elif name in {"style.photos.source", "style.samples.source"}:
        at |= {"source": "folder", "path": "/data/photos"}
    elif name == "offline_rl.environments.Hopper.id":  # one more environment, for stages that only name them
        known = other["offline_rl"]["environments"]
        other["offline_rl"]["environments"] = {"Walker2d": {"id": "Walker2d-v5"}, **known}
    elif name in OTHER:
        at[leaf[-1]] = OTHER[name]
    elif isinstance(at[leaf[-1]], bool):
        at[leaf[-1]] = not at[leaf[-1]]
    elif isinstance(at[leaf[-1]], list):
        at[leaf[-1]] = [value + 1 for value in at[leaf[-1]]]
    elif isinstance(at[leaf[-1]], float):
        at[leaf[-1]] /= 2
    else:
        at[leaf[-1]] += 1
    return other


def below(path, directories):
    return any(PurePosixPath(path).is_relative_to(directory) for directory in directories)


def covers(params, leaf):
    return any(tuple(name.split(".")) == leaf[: name.count(".") + 1] for name in params)


def science(values):
    return [leaf for leaf in leaves(values) if leaf[0] in {"offline_rl", "style", "deployment", "profile"}]


@pytest.mark.parametrize("stage", STAGES)
def test_a_key_that_changes_a_stages_cells_is_among_its_params(values, stage):
    before = outcome(stage, values)
    params = DVC[stage]["params"]
    effective = [leaf for leaf in science(values) if outcome(stage, changed(values, leaf)) != before]
    assert effective
    assert [leaf for leaf in effective if not covers(params, leaf)] == []
    # And none that changes nothing: it would only make DVC run the stage for nothing.
    assert [name for name in params if not any(covers([name], leaf) for leaf in effective)] == []


@pytest.mark.parametrize("stage", DVC)
def test_where_it_runs_and_is_recorded_is_in_no_stages_params(stage):
    for name in DVC[stage].get("params", []):
        assert name.split(".")[0] not in {"executor", "tracking", "serving", "conf_digest"}


def test_executor_and_tracking_change_no_plan(values):
    elsewhere = values | {
        "executor": values["executor"] | {"kind": "local", "num_cpus": 2, "stack_size": 3, "device": "cpu"},
        "tracking": {"uri": "http://elsewhere:5000", "experiment": "another"},
    }
    for stage in STAGES:
        assert outcome(stage, elsewhere) == outcome(stage, values)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_all_code_and_on_the_packages_in_its_digests(values, stage, packages):
    """So that DVC runs the stage after an edit, and after an upgrade of a package."""
    assert {*CODE, f"build/packages/{stage}.json"} <= set(DVC[stage]["deps"])
    listed = json.loads((packages / f"{stage}.json").read_text())
    for planner in plans(stage, values):
        for modules in {(cell.task.__module__, *cell.modules) for cell in planner.cells}:
            assert sources.package_versions(*modules).items() <= listed.items()


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """What the stage `packages` leaves."""
    directory = tmp_path_factory.mktemp("packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        list_packages()
    return directory / "build/packages"


def test_what_is_installed_and_registered_is_looked_at_each_time():
    """No file of the repository changes with either."""
    assert [stage for stage, entry in DVC.items() if entry.get("always_changed")] == ["packages", "register"]


def test_every_step_belongs_to_one_stage_in_the_order_of_the_catalogue():
    steps = [step for stage in STAGES.values() for step in stage.steps]
    assert sorted(steps) == sorted(STEPS)
    assert len(DVC) <= 12


@pytest.mark.parametrize("step", STEPS)
def test_a_steps_tables_and_record_are_among_the_outs_of_its_stage(step):
    assert set(written(step)) <= set(outs(stage_of(step)))


def written(step):
    """A step's tables, and the directory of its record."""
    return [*(table.as_posix() for table in STEPS[step].tables), f"results/provenance/{stage_of(step)}"]


def test_a_stage_is_described_by_one_sentence():
    """That of the catalogue; the command line has it from there."""
    assert list(STAGES) == [stage for stage in DVC if stage not in CHECKS]
    commands = typer.main.get_command(app).commands
    for stage, entry in DVC.items():
        python, module, package, command = entry["cmd"].split()
        assert (python, module, package) == ("python", "-m", "pipelines")
        assert entry["desc"] == commands[command].help
        if stage not in CHECKS:
            assert (entry["desc"], command) == (STAGES[stage].about, stage.replace("_", "-"))


@pytest.mark.parametrize("stage", STAGES)
def test_what_a_stages_cells_read_it_depends_on_or_has_made_itself(values, stage):
    made: list[str] = []
    for step, planner in zip(STAGES[stage].steps, plans(stage, values), strict=True):
        for cell in planner.cells:
            for path in cell.inputs.values():
                assert below(path.as_posix(), [*DVC[stage]["deps"], *made]), path
        out = [] if planner.out is None else [planner.out.as_posix()]
        assert set(out) <= set(outs(stage))
        made += [*out, *written(step)]


def test_the_report_depends_on_all_that_its_page_shows():
    deps = [*DVC["report"]["deps"], *outs("report")]
    records = {f"results/provenance/{stage}" for stage in STAGES}
    assert records == {dep for dep in deps if dep.startswith("results/provenance/")}
    assert [pattern for pattern in FILES if pattern != PROVENANCE and not below(pattern, deps)] == []


def outs(stage):
    for out in [*DVC[stage].get("outs", []), *DVC[stage].get("metrics", [])]:
        yield from [out] if isinstance(out, str) else out


def test_every_stage_waits_for_the_check_of_the_configuration():
    maker = {out: stage for stage in DVC for out in outs(stage)}

    def upstream(stage):
        makers = {maker[dep] for dep in DVC[stage].get("deps", ()) if dep in maker}
        return makers.union(*map(upstream, makers))

    for stage in STAGES:
        assert "config" in upstream(stage)


def test_the_check_sees_all_of_the_configuration():
    assert {config.CONF.as_posix(), config.PARAMS.as_posix()} <= set(DVC["config"]["deps"])
    assert load_config(ROOT / "params.yaml")
