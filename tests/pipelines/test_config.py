import dataclasses
import itertools
import os
import re
import shutil
import subprocess
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import pytest
import yaml
from checkouts import Checkout, cleaned

from pipelines.config import params as config
from pipelines.config.overrides import in_file
from pipelines.config.params import check, compose, configuration, load_config
from pipelines.stages.offline_rl import prune_cell
from singleshot.errors import UserError
from singleshot.style import shipped
from singleshot.style.start import START

ROOT = Path(__file__).parents[2]


def options(group):
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))


@pytest.fixture(scope="module")
def known():
    """The params.yaml that each combination of overrides has composed to."""
    return {}


@pytest.fixture
def composed(known, tmp_path, monkeypatch):
    """Compose the repository's conf/ with overrides to a params.yaml, each once; its path."""
    monkeypatch.chdir(ROOT)

    def compose_to(*overrides):
        path = tmp_path / "params.yaml"
        if overrides not in known:
            compose(overrides, path)
            known[overrides] = path.read_text()
        path.write_text(known[overrides])
        return path

    return compose_to


def test_every_file_of_conf_composes(composed):
    """Profiles are composed by other tests, too: here with a file of each other group."""
    for profile, executor, source, tracking in zip_longest(
        *map(options, ("profile", "executor", "data", "tracking"))
    ):
        chosen = {
            "profile": profile,
            "executor": executor,
            "data@offline_rl.data": source,
            "tracking": tracking,
        }
        loaded = load_config(composed(*(f"{key}={name}" for key, name in chosen.items() if name)))
        assert loaded.profile == (profile or "default")
        assert loaded.executor.kind == (executor or loaded.executor.kind)
        assert loaded.offline_rl.data.source == (source or "expert")
        assert loaded.tracking.experiment == "singleshot"


def with_defaults(section, name=""):
    """The keys of a section whose dataclass has a default: name, default and value."""
    for field in dataclasses.fields(section):
        value, full = getattr(section, field.name), f"{name}.{field.name}".strip(".")
        if field.default is not dataclasses.MISSING:
            yield full, field.default, value
        if field.default_factory is not dataclasses.MISSING:
            yield full, field.default_factory(), value
        if dataclasses.is_dataclass(value):
            yield from with_defaults(value, full)
        if field.name in ("training", "algorithms") and isinstance(value, dict):
            for algorithm, own in value.items():
                yield from with_defaults(own, f"{full}.{algorithm}")


def test_defaults_of_dataclasses_are_the_papers_values(composed):
    """Those are for users of tasks as a library. What `conf/` chooses by the source of data differs."""
    chosen = re.compile(r"(style\.(photos|samples)|offline_rl\.data)\.")
    keys = list(with_defaults(load_config(composed("profile=paper"))))
    assert {name for name, _, _ in keys} >= {"offline_rl.algorithms.bcq.tau", "executor.kind", "tracking.uri"}
    assert [key for key in keys if key[1] != key[2] and not chosen.match(key[0])] == []


def edited(path, edit):
    values = yaml.load(path.read_text(), yaml.CSafeLoader)
    edit(values)
    path.write_text(yaml.dump(values, Dumper=yaml.CSafeDumper))
    return path


def put(value, key):
    *above, last = key.split(".")

    def edit(values):
        for name in above:
            values = values[name]
        values[last] = value

    return edit


WRONG = [
    ("offline_rl.algorithms.bcq.lamda", 3, "algorithms.bcq.lamda"),
    ("offline_rl.training.bc.updates", "5", "training.bc.updates: "),
    ("offline_rl.training.bc.updates", 0, "training.bc.updates: "),
    ("offline_rl.sweep.seeds", [1.5], "sweep.seeds.0: "),
    ("offline_rl.sweep.pruners", ["snap"], "(it is 'snap'); correct it"),
    ("offline_rl.sweep.sparsities", [0], "sweep.sparsities"),
    ("offline_rl.algorithms.td3bc.hidden", [256], "algorithms.td3bc.hidden.1: Field required"),
    ("offline_rl.environments", {}, "offline_rl.environments"),
    ("offline_rl.environments", {"a/b": {"id": None}}, "'a/b'"),
    ("executor.stack_size", "x", "executor.stack_size: "),
    ("style.training.styles", ["oil"], "'oil'"),
    ("style.transfer.studies", {}, "style.transfer.studies"),
    ("style.quality.study", "nope", "'nope'"),
    ("deployment.classifier.architecture", "resnet50", "resnet50"),
    ("deployment.benchmark.runtimes", ["tvn"], "'tvn'"),
    ("serving.root_path", "a/", "'a/'"),
    ("style.stylize.strength", float("nan"), "style.stylize.strength: "),
    ("style.photos.source", "???", "style.photos.source"),
]


def test_a_wrong_key_or_value_is_one_line_that_names_it(composed):
    for key, value, named in WRONG:
        path = edited(composed(), put(value, key))
        with pytest.raises(UserError) as failure:
            load_config(path)
        assert str(failure.value).startswith(f"{path}: ")
        assert named in str(failure.value)
        assert "\n" not in str(failure.value)
    path.write_text("a: [")
    with pytest.raises(UserError, match=r"^[^\n]*params\.yaml: [^\n]*$"):
        load_config(path)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ("style.paintings.sources.mine.source=a.jpg", "no key style.paintings.sources.mine; "),
        ("style.transfer.settings.size_px=64", "style.transfer.settings.size_px; one"),
        ("offline_rl.sweep.sparsites=[0.5]", "did you mean offline_rl.sweep.sparsities?"),
        ("photos@style.photos=folder", "style.photos.path"),
        ("executor=slurm", "executor=slurm"),
        ("offline_rl.training.bc.updates=many", "many"),
        ("[0", "'[0'"),
        ({"offline_rl": {"sweep": {"sede": [1]}}}, "offline_rl.sweep.sede"),
        (["profile"], "mine.yaml"),
        ({"profile": "../../../tmp/evil"}, "profile is '../../../tmp/evil'; give the name"),
        ({"profile": [1]}, "profile is [1]; give the name"),
        ({"profile": "smoke\nx=1"}, "profile is 'smoke"),
        ({"serving": {"host": b"\0"}}, "mine.yaml"),
    ],
)
def test_a_wrong_override_is_one_line_and_leaves_params_alone(composed, tmp_path, overrides, named):
    before = composed().read_text()
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(overrides))
    with pytest.raises(UserError) as failure:
        composed(*([overrides] if isinstance(overrides, str) else in_file(file, config.CONF)))
    assert named in str(failure.value)
    assert "\n" not in str(failure.value)
    assert (tmp_path / "params.yaml").read_text() == before


BOMB = "\n".join(
    f"{key}: &{key} [{', '.join([of] * 9)}]"
    for key, of in zip("abcdefghij", ["x", *(f"*{k}" for k in "abcdefghi")], strict=True)
)


@pytest.mark.parametrize("experiment", ["x-${oc.env:SECRET}", r"x-\x24{oc.env:SECRET}", "${oc.${a}:SECRET}"])
def test_settings_open_nothing_else(composed, tmp_path, monkeypatch, experiment):
    """A stranger's settings copy no secret to params.yaml, and take no time without end."""
    monkeypatch.setenv("SECRET", "geheim")
    given, output = tmp_path / "given.yaml", tmp_path / "new.yaml"
    for content in (f'tracking: {{experiment: "{experiment}"}}', BOMB):
        given.write_text(content)
        for read in (load_config, lambda path: compose(in_file(path, config.CONF), output)):
            with pytest.raises(UserError, match=r"given\.yaml: line \d refers to something else"):
                read(given)
    with pytest.raises(UserError, match="nterpolation"):
        compose([f"tracking.experiment='{experiment}'".replace(r"\x24", "$")], output)
    assert not output.exists()
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "conf", "conf")
    Path("conf/tracking/sqlite.yaml").write_text(BOMB, "utf-8")
    with pytest.raises(UserError, match=r"conf/tracking/sqlite\.yaml: line 2 refers"):
        compose([])


def test_the_committed_params_are_what_conf_composes(composed):
    # Committed, not in the working tree: a user who tries another sweep runs these tests too.
    committed = subprocess.run(
        ["git", "show", "HEAD:params.yaml"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert composed(f"profile={yaml.safe_load(committed)['profile']}").read_text() == committed


def test_check_notices_an_edited_or_added_file_of_conf(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    monkeypatch.chdir(tmp_path)
    compose(["profile=smoke"])
    # params.yaml may be edited, or overridden with -S: only conf/ itself is compared.
    edited(tmp_path / "params.yaml", put(123, "offline_rl.training.bc.updates"))
    assert check().offline_rl.training["bc"].updates == 123
    (tmp_path / "conf/profile/mine.yaml").write_text("# @package _global_\nprofile: mine\n")
    with pytest.raises(UserError, match="conf/ was edited"):
        check()


@pytest.mark.slow
def test_dvc_composes_as_we_do(tmp_path):
    """`dvc exp run -S`, up to where the experiment would start."""
    checkout = Checkout.of_working_tree(tmp_path / "clone")
    overrides = [
        "profile=paper",
        "executor=local",
        "offline_rl.sweep.seeds=[3,4]",
        "offline_rl.algorithms.bcq.tau=0.5",
    ]
    with cleaned(checkout):
        checkout.run("dvc", "exp", "run", "--queue", *itertools.chain(*(("-S", word) for word in overrides)))
        composed_by_dvc = checkout.run("git", "show", "refs/exps/celery/stash:params.yaml")
        checkout.compose(*overrides)
    assert (checkout.path / "params.yaml").read_text() == composed_by_dvc


def test_the_paper_profile_is_the_paper(composed):
    """Arnob et al. 2021, section 5: 2 pruners and 6 sparsities beside the dense agents, 5 seeds."""
    sweep = list(load_config(composed("profile=paper")).offline_rl.agents())
    assert len(sweep) == len(set(sweep)) == 390
    assert set(Counter((agent.environment, agent.algorithm) for agent in sweep).values()) == {65}
    assert len({(agent.environment, agent.algorithm) for agent in sweep}) == 6
    by_pruner = Counter((agent.pruner, agent.sparsity) for agent in sweep)
    assert by_pruner == {("dense", 0.0): 30} | {
        (pruner, sparsity): 30
        for pruner in ("snip", "grasp")
        for sparsity in (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
    }


VALUES = [
    "https://example.org/~me/a b.hdf5?part=1&of=2,3",
    "it's",
    'a "b" $5',
    "a\\b\\",
    "-1=2; x | y #z",
    "[a,b→",
]
"""Texts with what shells, make and Hydra read as something else."""


def test_overrides_and_files_of_them_have_any_value(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    file, output = tmp_path / "mine.yaml", tmp_path / "params.yaml"
    sources = {f"mine-{number}": {"source": value} for number, value in enumerate(VALUES)}
    content = {
        "profile": "smoke",
        "executor": "local",
        "executor.num_cpus": 2,
        "data@offline_rl.data": "d4rl",
        "offline_rl": {"sweep": {"seeds": [3, 4]}, "data": {"d4rl": {"Hopper": {"url": VALUES[0]}}}},
        "style.paintings.sources": sources,
    }
    file.write_text(yaml.safe_dump(content), "utf-8")
    compose([*in_file(file, config.CONF), "offline_rl.sweep.pruners=[snip]"], output)
    loaded = load_config(output)
    assert loaded.profile == "smoke"
    assert (loaded.executor.kind, loaded.executor.num_cpus) == ("local", 2)
    assert loaded.offline_rl.sweep.seeds == (3, 4)
    assert loaded.offline_rl.sweep.pruners == ("snip",)
    assert loaded.offline_rl.data.d4rl["Hopper"].url == VALUES[0]
    of_file = {name: painting.source for name, painting in loaded.style.paintings.sources.items()}
    given = [f"+style.paintings.sources.{name}.source={own['source']}" for name, own in sources.items()]
    compose(given, output)
    loaded = load_config(output)
    assert {name: painting.source for name, painting in loaded.style.paintings.sources.items()} == of_file
    assert [of_file[name] for name in sources] == VALUES


def test_an_earlier_params_yaml_is_a_file_of_overrides(composed, tmp_path):
    earlier = composed("profile=smoke", "offline_rl.sweep.seeds=[7]")
    before = earlier.read_text()
    compose(in_file(earlier, config.CONF), tmp_path / "again.yaml")
    assert (tmp_path / "again.yaml").read_text() == before


def test_overrides_are_read_once_as_from_a_pipe():
    reading, writing = os.pipe()
    os.write(writing, b"profile: smoke")
    os.close(writing)
    assert in_file(Path(f"/dev/fd/{reading}"), config.CONF) == ["profile=smoke"]
    os.close(reading)


def test_a_drawn_painting_is_learned_from_the_shipped_style_of_it():
    config = configuration("style.paintings.sources.mosaic={source: mosaic.jpg, sha256: null}")
    begun = [config.style.start_of(style) for style in ("waves", "mosaic", "swirls")]
    assert begun == [{"start": shipped.FILES["waves"]}, {"start": START}, {"start": START}]
    assert configuration("profile=smoke").style.start_of("swirls") == {}


def test_masks_are_the_same_whichever_weights_are_trained_under_them():
    cells = []
    for drawn in ("false", "true"):
        made = configuration("profile=smoke", f"offline_rl.pruning.reinitialize={drawn}").offline_rl
        cells.append(prune_cell(made, next(agent for agent in made.agents() if agent.mask_pruner)))
    assert cells[0].params == cells[1].params
