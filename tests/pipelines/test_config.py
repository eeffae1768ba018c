import dataclasses
import itertools
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml
from checkouts import Checkout, cleaned

from pipelines.catalog.agents import agents
from pipelines.config import params as config
from pipelines.config.overrides import in_file
from pipelines.config.params import check, compose, load_config
from singleshot.errors import UserError

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
    for profile in options("profile"):
        assert load_config(composed(f"profile={profile}")).profile == profile
    for executor in options("executor"):
        assert load_config(composed(f"executor={executor}")).executor.kind == executor
    for source in options("data"):
        assert load_config(composed(f"data@offline_rl.data={source}")).offline_rl.data.source == source
    for tracking in options("tracking"):
        assert load_config(composed(f"tracking={tracking}")).tracking.experiment == "singleshot"


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


def test_defaults_of_dataclasses_are_the_papers_values(composed):
    """Those are for users of tasks as a library. What `conf/` chooses by the source of data differs."""
    chosen = re.compile(r"(style\.(photos|samples)|offline_rl\.data)\.")
    keys = list(with_defaults(load_config(composed("profile=paper"))))
    assert {name for name, _, _ in keys} >= {"offline_rl.algorithms.bcq.tau", "executor.kind", "tracking.uri"}
    assert [key for key in keys if key[1] != key[2] and not chosen.match(key[0])] == []


def test_a_folder_of_photos_needs_its_path(composed):
    with pytest.raises(UserError, match=r"conf: style\.photos\.path has no value"):
        composed("photos@style.photos=folder")
    folder = composed("photos@style.photos=folder", "style.photos.path=/data")
    assert load_config(folder).style.photos.path == "/data"


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
    ("offline_rl.algorithms.bcq.lamda", 3, r"algorithms\.bcq\.lamda: .*Unexpected"),
    ("offline_rl.training.bc.updates", "5", r"training\.bc\.updates: .*integer.*'5'"),
    ("offline_rl.training.bc.updates", 0, r"training\.bc\.updates: .*greater.*0"),
    ("offline_rl.sweep.seeds", [1.5], r"offline_rl\.sweep\.seeds\.0: .*1\.5"),
    ("offline_rl.sweep.sparsities", [0], r"offline_rl\.sweep\.sparsities .*above 0"),
    ("offline_rl.sweep.sparsities", [0.5, 1], r"offline_rl\.sweep\.sparsities\.1: .*less.*1"),
    ("offline_rl.environments", {}, r"offline_rl\.environments is empty; select one"),
    ("offline_rl.environments", {"a/b": {"id": None}}, r"'a/b' can't name a folder"),
    ("executor.stack_size", 0, r"executor\.stack_size: .*equal to 1 or 'auto' \(it is 0\); corr"),
    ("executor.stack_size", {}, r"executor\.stack_size: .*valid integer or 'auto'; corr"),
    ("offline_rl.data", None, r"offline_rl\.data: "),
    ("offline_rl.data.minari", {"Ant": 1}, r"minari\.Ant: .*string, in quotes \(it is 1\)"),
    ("style.training.styles", ["oil"], r"style: .*no painting 'oil', only .*waves"),
    ("style.training.styles", ["swirls", "swirls"], r"style: .*twice \(swirls, swirls\); take"),
    ("style.transfer.studies", {}, r"style\.transfer\.studies has no study"),
    ("style.quality.study", "nope", r"style: .*quality\.study is 'nope'; set it to .* or null"),
    ("style.speed.backbones", ["vgg11"], r"style\.speed\.backbones\.0: .*vgg16.*'vgg11'"),
    ("style.clip.width", 8, r"style\.clip\.width: .*16.*\(it is 8\)"),
    ("style.clip.fps", "a", r"style\.clip: .*fps is 'a'"),
    ("deployment.classifier.architecture", "resnet50", r"classifier: .*package has no weights of res"),
    ("deployment.benchmark.runtimes", ["tvn"], r"runtimes\.0: .*known are .*tvm.*'tvn'"),
    ("serving.root_path", "a/", r"serving: .*root_path 'a/'"),
    ("style.photos.source", "???", r"style\.photos\.source has no value"),
]


@pytest.mark.parametrize(("key", "value", "named"), WRONG)
def test_a_wrong_key_or_value_is_one_line_that_names_it(composed, key, value, named):
    path = edited(composed(), put(value, key))
    with pytest.raises(UserError, match=named) as failure:
        load_config(path)
    assert str(failure.value).startswith(f"{path}: ")
    assert "\n" not in str(failure.value)


def test_a_missing_key_is_named(composed):
    path = edited(composed(), lambda values: values["offline_rl"]["sweep"].pop("seeds"))
    with pytest.raises(UserError, match=r"offline_rl\.sweep\.seeds: .*required"):
        load_config(path)


def test_an_unknown_pruner_is_named_before_anything_is_computed(composed):
    with pytest.raises(UserError, match=r"pruners\.1: .*known are erk.*'snap'"):
        composed("offline_rl.sweep.pruners=[snip,snap]")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("style.paintings.sources.mine.source=a.jpg", r"\+style\.paintings\.sources\.NAME\.source=…"),
        ("style.transfer.settings.size_px=64", r"\+style\.transfer\.settings\.size_px=64"),
        ("offline_rl.sweep.sparsites=[0.5]", r"did you mean offline_rl\.sweep\.sparsities\?"),
        ("xyz=1", r"no key xyz; docs/configuration\.md"),
        ("executor=slurm", "executor=slurm.*local ray"),
        ("executor=3", "conf with executor=3"),
        ("offline_rl.training.bc.updates=many", "many"),
        ("[0", r"'\[0' is not of the form KEY=VALUE"),
    ],
)
def test_a_wrong_override_is_one_line_and_leaves_params_alone(composed, tmp_path, override, words):
    before = composed().read_text()
    with pytest.raises(UserError, match=words) as failure:
        composed(override)
    assert "\n" not in str(failure.value)
    assert (tmp_path / "params.yaml").read_text() == before


@pytest.mark.parametrize("content", ["a: [", "a: ${nowhere}", None])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, content):
    path = tmp_path / "params.yaml"
    if content:
        path.write_text(content)
    with pytest.raises(UserError, match=r"params\.yaml: ") as failure:
        load_config(path)
    assert "\n" not in str(failure.value)


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
    assert check().profile == "smoke"
    (tmp_path / "conf/profile/mine.yaml").write_text("# @package _global_\nprofile: mine\n")
    with pytest.raises(UserError, match="conf/ was edited"):
        check()


def test_values_set_by_hand_stay(composed):
    """params.yaml may be edited, or overridden with -S: only conf/ itself is compared."""
    path = edited(composed(), put(123, "offline_rl.training.bc.updates"))
    assert check(path).offline_rl.training.bc.updates == 123


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
    sweep = list(agents(load_config(composed("profile=paper"))))
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
URL = "offline_rl.data.d4rl.Hopper.url"


@pytest.mark.parametrize("value", VALUES)
def test_any_text_can_be_a_value(composed, value):
    path = composed("data@offline_rl.data=d4rl", f"{URL}={value}")
    assert load_config(path).offline_rl.data.d4rl["Hopper"].url == value


def test_a_file_of_overrides_may_be_nested_or_dotted_and_has_any_value(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    file, output = tmp_path / "mine.yaml", tmp_path / "params.yaml"
    for value in VALUES:
        content = {
            "profile": "smoke",
            "executor": "local",
            "executor.num_cpus": 2,
            "data@offline_rl.data": "d4rl",
            "offline_rl": {"sweep": {"seeds": [3, 4]}, "data": {"d4rl": {"Hopper": {"url": value}}}},
            "style.paintings.sources": {"mine": {"source": value}},
        }
        file.write_text(yaml.safe_dump(content), "utf-8")
        compose([*in_file(file, config.CONF), "offline_rl.sweep.pruners=[snip]"], output)
        loaded = load_config(output)
        assert loaded.profile == "smoke"
        assert (loaded.executor.kind, loaded.executor.num_cpus) == ("local", 2)
        assert loaded.offline_rl.sweep.seeds == (3, 4)
        assert loaded.offline_rl.sweep.pruners == ("snip",)
        assert loaded.offline_rl.data.d4rl["Hopper"].url == value
        assert loaded.style.paintings.sources["mine"].source == value


def test_an_earlier_params_yaml_is_a_file_of_overrides(composed, tmp_path):
    earlier = composed("profile=smoke", "offline_rl.sweep.seeds=[7]")
    before = earlier.read_text()
    compose(in_file(earlier, config.CONF), tmp_path / "again.yaml")
    assert (tmp_path / "again.yaml").read_text() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("offline_rl: {sweep: {sede: [1]}}", "offline_rl.sweep.sede"),
        ("profile: huge", "huge"),
        ("- profile", "a list, not a mapping"),
        ("a: [", "mine.yaml: "),
        (None, "mine.yaml: "),
    ],
)
def test_a_wrong_file_of_overrides_is_one_line(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(ROOT)
    file = tmp_path / "mine.yaml"
    if content:
        file.write_text(content)
    with pytest.raises(UserError, match=message) as failure:
        compose(in_file(file, config.CONF), tmp_path / "params.yaml")
    assert "\n" not in str(failure.value)
