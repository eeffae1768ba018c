"""The study's driver, with two small experiments in place of its own."""

import pandas
import pytest
import torch
import yaml
from checkouts import Checkout

from pipelines.cli import study
from pipelines.config.params import configuration
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


@pytest.mark.slow
def test_tables_have_each_agent_once_and_nothing_is_computed_again(tmp_path):
    checkout = Checkout.of_working_tree(tmp_path / "checkout")
    (checkout.path / "conf/study.yaml").write_text(yaml.safe_dump(EXPERIMENTS, sort_keys=False))
    checkout.run("python", "-m", "pipelines", "study", "-o", "tables")
    tables = {
        name: pandas.read_csv(checkout.path / "tables" / name)
        for name in ("runs.csv", "scores.csv", "layers.csv")
    }
    runs, scores, layers = tables.values()
    names = sorted(runs[["scope", "pruner", "seed"]].fillna("").itertuples(index=False, name=None))
    assert names == sorted(
        [("", "dense", 0), ("", "dense", 1)]
        + [(scope, pruner, 0) for scope in ("part", "network") for pruner in ("snip", "snip-shuffled")]
        + [("part", pruner, 1) for pruner in ("snip", "snip-shuffled")]
    )
    assert scores.groupby("update").size().to_dict() == {2: len(runs), 4: len(runs)}
    assert scores.groupby("update")["episodes"].unique().to_dict() == {2: [1], 4: [2]}
    kept = layers.set_index(["scope", "seed", "part", "layer"])["weights_kept"]
    snip, shuffled = (kept[(layers["pruner"] == name).to_numpy()] for name in ("snip", "snip-shuffled"))
    assert len(snip) == 3 * 7
    pandas.testing.assert_series_equal(snip.sort_index(), shuffled.sort_index())

    before = {path.name: path.read_bytes() for path in (checkout.path / "tables").iterdir()}
    again = checkout.run("python", "-m", "pipelines", "study", "-o", "tables")
    assert again.count("in the tables") == 3
    assert {path.name: path.read_bytes() for path in (checkout.path / "tables").iterdir()} == before


def test_the_repository_s_experiments_are_scored_as_the_pages_score():
    """The mean of five evaluations of the last quarter of training."""
    for config in study.experiments().values():
        for name in config.offline_rl.sweep.algorithms:
            training = config.offline_rl.training[name]
            assert training.updates / training.eval_every >= 20
            assert training.eval_from == 0


def test_a_key_is_a_row_of_the_published_tables():
    """A dense agent has no settings of pruning, and one that was pruned by SNIP has all."""
    config = study.experiments(["scored-normalized-trained-raw"])["scored-normalized-trained-raw"]
    dense, snip, *_ = config.offline_rl.agents()
    assert list(study.key(config.offline_rl, dense).values()) == [
        *("25000", "False", "100", "0.001", "vae", "750-750", "linear", "1000000", "0", "0", "", "", "", ""),
        *("HalfCheetah", "bc", "dense", "0.0", "0"),
    ]
    assert list(study.key(config.offline_rl, snip).values())[10:14] == ["part", "100", "1", "True"]
    columns = list(study.key(config.offline_rl, dense))
    runs = study.read_table(study.Path("docs/study/runs.csv").absolute(), columns)
    assert list(runs)[: len(columns)] == columns
    assert tuple(study.key(config.offline_rl, dense).values()) in set(
        runs[columns].itertuples(index=False, name=None)
    )


@pytest.fixture
def computed(tmp_path, monkeypatch):
    """The seeds that are computed, in a file of two experiments; here, none takes any time."""
    monkeypatch.setattr(study, "EXPERIMENTS", tmp_path / "study.yaml")
    study.EXPERIMENTS.write_text(yaml.safe_dump(EXPERIMENTS))
    seeds = []
    monkeypatch.setattr(study, "compute", lambda _, wanted, store: seeds.extend(each.seed for each in wanted))
    monkeypatch.setattr(study, "results", lambda *_: {})
    return seeds


@pytest.mark.parametrize(
    ("gpu", "overrides", "expected"),
    [
        (False, [], [(0,), (1,)]),
        (True, [], [(0, 1)]),
        (False, ["executor=ray", "executor.device=cuda"], [(0, 1)]),  # that of a cluster
    ],
)
def test_seeds_are_computed_together_on_a_gpu(monkeypatch, gpu, overrides, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    config = configuration("profile=study", *EXPERIMENTS["parts"], *overrides)
    assert study.side_by_side(config) == expected


@pytest.mark.parametrize(
    ("table", "text", "named"),
    [
        ("runs.csv", "<<<<<<< HEAD\n", "runs.csv: "),
        ("scores.csv", "updates,{}\n<<<<<<< HEAD\n", "scores.csv: "),
        ("../study.yaml", "a:\n\t- executor=local\n", "study.yaml: "),
        ("../study.yaml", "a:\n", "study.yaml: "),
    ],
)
def test_what_is_damaged_is_told_before_a_seed_is_computed(tmp_path, computed, table, text, named):
    output = tmp_path / "tables"
    output.mkdir()
    config = study.experiments(["networks"])["networks"]
    columns = list(study.key(config.offline_rl, next(config.offline_rl.agents())))
    (output / table).write_text(text.format(",".join(columns[1:])))
    with pytest.raises(UserError, match=named):
        study.run_study(output)
    assert not computed


def test_an_unknown_experiment_is_named(tmp_path, computed):
    with pytest.raises(UserError, match=r"study\.yaml: .*'bcx'.*networks, parts"):
        study.run_study(tmp_path / "new", ["bcx"])
