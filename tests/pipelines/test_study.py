"""The study's driver, with two small experiments in place of its own."""

import pandas
import pytest
import torch
import yaml
from checkouts import Checkout
from study_tables import write_tables as write_made_up_tables

from pipelines.catalog.agents import agents
from pipelines.cli import study
from pipelines.cli.study import _experiments
from singleshot.errors import UserError

SMALL = [
    "environment=[Hopper]",
    "offline_rl.sweep.algorithms=[bc]",
    "offline_rl.sweep.pruners=[snip,snip-shuffled]",
    "offline_rl.data.transitions=2000",
    "offline_rl.training.bc.updates=4",
    "offline_rl.training.bc.eval_every=2",
    "offline_rl.evaluation.episodes=1",
    "offline_rl.evaluation.final_episodes=2",
    "executor=local",
]
EXPERIMENTS = {
    "parts": [*SMALL, "offline_rl.sweep.seeds=[0,1]"],
    "networks": [*SMALL, "offline_rl.sweep.seeds=[0]", "offline_rl.pruning.scope=network"],
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    checkout = Checkout.of_working_tree(tmp_path_factory.mktemp("study") / "checkout")
    (checkout.path / "conf/study.yaml").write_text(yaml.safe_dump(EXPERIMENTS, sort_keys=False))
    checkout.run("python", "-m", "pipelines", "study", "-o", "tables")
    return checkout


def table(checkout, name, output="tables"):
    return pandas.read_csv(checkout.path / output / name)


@pytest.mark.slow
def test_the_tables_have_each_agent_once(checkout):
    runs = table(checkout, "runs.csv")
    names = sorted(runs[["scope", "pruner", "seed"]].fillna("").itertuples(index=False, name=None))
    assert names == sorted(
        [("", "dense", 0), ("", "dense", 1)]
        + [(scope, pruner, 0) for scope in ("part", "network") for pruner in ("snip", "snip-shuffled")]
        + [("part", pruner, 1) for pruner in ("snip", "snip-shuffled")]
    )
    scores = table(checkout, "scores.csv")
    assert scores.groupby("update").size().to_dict() == {2: len(runs), 4: len(runs)}
    assert scores.groupby("update")["episodes"].unique().to_dict() == {2: [1], 4: [2]}


@pytest.mark.slow
def test_a_control_s_layers_keep_as_many_weights(checkout):
    layers = table(checkout, "layers.csv").set_index(["scope", "seed", "part", "layer"])
    snip, shuffled = (
        layers.loc[layers["pruner"] == name, "weights_kept"] for name in ("snip", "snip-shuffled")
    )
    assert len(snip) == 3 * 7
    pandas.testing.assert_series_equal(snip.sort_index(), shuffled.sort_index())
    parts = layers[layers["pruner"] == "snip"].loc["part"].groupby(["seed", "part"])
    density = parts["weights_kept"].sum() / parts["weights_total"].sum()
    assert density.to_list() == pytest.approx([0.05] * 4, abs=1e-4)


@pytest.mark.slow
def test_what_the_tables_have_is_not_computed_again(checkout):
    before = {path.name: path.read_bytes() for path in (checkout.path / "tables").iterdir()}
    assert checkout.run("python", "-m", "pipelines", "study", "-o", "tables").count("in the tables") == 3
    assert {path.name: path.read_bytes() for path in (checkout.path / "tables").iterdir()} == before


@pytest.mark.slow
def test_tables_alone_are_made_from_what_is_finished(checkout):
    checkout.run("python", "-m", "pipelines", "study", "--tables", "-o", "again")
    for name in ("scores.csv", "layers.csv", "runs.csv"):
        assert (checkout.path / "again" / name).read_bytes() == (checkout.path / "tables" / name).read_bytes()


def test_the_experiments_of_the_repository():
    """They train every agent of the main comparison, on raw and on normalised states."""
    main = {False: set(), True: set()}
    for config in _experiments(()).values():
        offline_rl = config.offline_rl
        for name in ("bc", "bcq"):
            algorithm, training = getattr(offline_rl.algorithms, name), getattr(offline_rl.training, name)
            assert algorithm.learning_rate == 1e-3
            assert training.updates / training.eval_every >= 20
            assert training.eval_from == 0
            if (training.updates, algorithm.batch_size, offline_rl.pruning.scope) == (25_000, 100, "part"):
                own = {agent for agent in agents(config) if agent.algorithm == name}
                main[algorithm.normalize_states] |= {agent for agent in own if agent.sparsity in {0, 0.95}}
    pruners = ("dense", "snip", "grasp", "snip-shuffled", "grasp-shuffled", "random")
    for trained in main.values():
        assert len([agent for agent in trained if agent.pruner in pruners]) == 3 * 2 * 5 * len(pruners)


@pytest.mark.slow
def test_an_unknown_experiment_is_one_line(checkout):
    output = checkout.run("python", "-m", "pipelines", "study", "bcx", expect=1)
    assert output.startswith("error: conf/study.yaml: no experiment 'bcx'; it has parts, networks")


@pytest.fixture
def computed(monkeypatch):
    """The seeds that are computed together: here, none takes any time."""
    together = []
    monkeypatch.setattr(study, "compute", lambda _config, seeds, *_: together.append(seeds))
    return together


@pytest.fixture
def experiments(tmp_path, monkeypatch):
    """Writes conf/study.yaml."""
    monkeypatch.setattr(study, "EXPERIMENTS", tmp_path / "study.yaml")
    return study.EXPERIMENTS.write_text


@pytest.fixture
def tables(tmp_path):
    """The tables of a study, of other agents."""
    write_made_up_tables(tmp_path / "tables", seeds=1)
    return tmp_path / "tables"


@pytest.mark.parametrize("output", ["README.md", "README.md/tables"])
def test_a_file_in_place_of_the_tables_is_told_before_a_seed_is_computed(tmp_path, computed, output):
    (tmp_path / "README.md").write_text("mine")
    for command in (study.run_study, study.write_tables):
        with pytest.raises(UserError, match=rf"{output}: a file is in its place; name a directory"):
            command(tmp_path / output, ["draw-0"])
    assert not computed
    assert (tmp_path / "README.md").read_text() == "mine"


@pytest.mark.parametrize(("gpu", "expected"), [(False, [[0], [1], [2], [3]]), (True, [[0, 1, 2, 3]])])
def test_seeds_are_computed_together_on_a_gpu(tmp_path, computed, monkeypatch, gpu, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    study.run_study(tmp_path, ["draw-0"])
    assert computed == expected


def test_a_cluster_may_have_the_gpu_that_is_asked_for(tmp_path, experiments, computed, monkeypatch):
    overrides = ["executor=ray", "executor.device=cuda", "offline_rl.sweep.seeds=[0,1]"]
    experiments(yaml.safe_dump({"a": overrides}))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    study.run_study(tmp_path / "tables", ["a"])
    assert computed == [[0, 1]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a:\n\t- executor=local\n", r"ScannerError: .* found character '\\t' .* line 2.*"),
        ("", r"the whole: Input should be a valid dictionary \(it is None\)"),
        ("a:\n", r"a: Input should be a valid list \(it is None\)"),
        ("a:\n  - 5\n", r"a\.0: Input should be a valid string \(it is 5\)"),
        ("- a\n" * 100, r"the whole: Input should be a valid dictionary \(it is .{,60}\)"),
    ],
)
def test_what_is_wrong_with_the_experiments_is_said_in_a_line(experiments, text, reason):
    experiments(text)
    with pytest.raises(UserError, match=rf"study\.yaml: {reason}; write each experiment as") as told:
        _experiments(())
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["runs.csv", "scores.csv"])
@pytest.mark.parametrize("line", [0, 2])
def test_a_table_in_conflict_is_told_before_a_seed_is_computed(experiments, tables, computed, name, line):
    experiments(yaml.safe_dump(EXPERIMENTS))
    put_marker(tables / name, line)
    told = "'<<<<<<< HEAD' in the column 'updates' is no number" if line else "has no column 'updates'"
    expected = rf"{name}: {told}; get it back with `git checkout HEAD .*{name}`"
    for command in (study.run_study, study.write_tables):
        with pytest.raises(UserError, match=expected):
            command(tables)
    assert not computed


@pytest.mark.parametrize("line", [0, 2])
def test_the_page_is_not_made_from_runs_in_conflict(tables, line):
    put_marker(tables / "runs.csv", line)
    with pytest.raises(UserError, match=r"runs\.csv: .*'updates'.*; get it back with `git checkout HEAD "):
        study.draw_page(tables)


def put_marker(table, line):
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join([*lines[:line], "<<<<<<< HEAD\n", *lines[line:]]))


def test_an_interruption_leaves_a_table_as_it_was(experiments, tables, monkeypatch):
    experiments(yaml.safe_dump(EXPERIMENTS))
    before = (tables / "runs.csv").read_bytes()
    new = pandas.read_csv(tables / "runs.csv", dtype=str, keep_default_na=False).assign(seed="7")
    monkeypatch.setattr(study, "results", lambda *_: {"runs.csv": new})

    def stop_midway(_frame, file, **_):
        file.write_text("updates,norm")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pandas.DataFrame, "to_csv", stop_midway)
        with pytest.raises(KeyboardInterrupt):
            study.write_tables(tables)
    assert (tables / "runs.csv").read_bytes() == before
    study.write_tables(tables)
    assert set(pandas.read_csv(tables / "runs.csv")["seed"]) == {0, 7}
    assert sorted(path.name for path in tables.iterdir()) == ["layers.csv", "runs.csv", "scores.csv"]
