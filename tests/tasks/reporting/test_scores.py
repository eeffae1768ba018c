import json
import math

import numpy as np
import pandas
import pytest

from singleshot.errors import UserError
from singleshot.job import Job
from tasks.reporting.scores import evaluate_scores
from tasks.reporting.statistics import BootstrapConfig

ENVIRONMENTS = ("HalfCheetah", "Hopper", "Walker2d")
COLUMNS = ["environment", "algorithm", "pruner", "sparsity", "seed", "update", "d4rl_score"]
LEVEL = {"dense": 80.0, "snip": 76.0, "grasp": 40.0}


@pytest.fixture(scope="module")
def scores():
    """Two algorithms' agents, of whose evaluations all but the last five are of no account."""
    rng = np.random.default_rng(0)
    rows = [
        (environment, algorithm, pruner, sparsity, seed, update,
         rng.normal(LEVEL[pruner] - 20 * sparsity, 5) if update > last - 25 else -1e6)
        for environment in ENVIRONMENTS
        for algorithm, last in (("bc", 35), ("bcq", 30))  # BC is longer trained
        for pruner, sparsity in (("dense", 0.0), ("snip", 0.5), ("snip", 0.95), ("grasp", 0.95))
        for seed in range(4)
        for update in range(5, last + 1, 5)
    ]  # fmt: skip
    return pandas.DataFrame(rows, columns=COLUMNS)


@pytest.fixture(scope="module")
def evaluated(scores, tmp_path_factory):
    """The metrics of all these agents and the files."""
    return evaluate(scores, tmp_path_factory.mktemp("all"))


def by_agent(scores):
    """The mean of each agent's evaluations that count."""
    return scores[scores["d4rl_score"] > -1e6].groupby(COLUMNS[:5])["d4rl_score"].mean().reset_index()


def evaluate(scores, directory, confidence=0.95):
    """The metrics and the files that the task leaves."""
    output = directory / "output"
    output.mkdir(parents=True)
    scores.to_csv(directory / "scores.csv", index=False)
    config = BootstrapConfig(resamples=1000, confidence=confidence)
    (event,) = evaluate_scores([Job(config, {"scores": directory / "scores.csv"}, output)])
    return event.values, output


def statistics(output):
    table = pandas.read_csv(output / "statistics.csv")
    return table.set_index(["environment", "algorithm", "pruner", "sparsity"]).sort_index()


def test_a_score_is_the_mean_of_the_last_five_evaluations_by_hand(tmp_path):
    """Of seven evaluations of one run and three of another, with their sample deviations."""
    runs = {0: [900, 900, 10, 20, 30, 40, 50], 1: [10, 20, 60]}
    rows = [
        ("Hopper", "bc", "dense", 0.0, seed, update, score)
        for seed, scores in runs.items()
        for update, score in enumerate(scores)
    ]
    _, output = evaluate(pandas.DataFrame(rows[::-1], columns=COLUMNS), tmp_path)
    row = statistics(output).loc[("Hopper", "bc", "dense", 0.0)]
    assert row["score_mean"] == (30 + 30) / 2
    assert row["score_spread"] == pytest.approx((math.sqrt(1000 / 4) + math.sqrt(1400 / 2)) / 2)
    assert row["evaluations"] == 3  # of the run that has fewer
    single = pandas.DataFrame(rows[:1], columns=COLUMNS)
    table = statistics(evaluate(single, tmp_path / "single")[1])
    assert table["score_spread"].isna().all()


def test_statistics_are_those_of_the_last_scores(scores, evaluated):
    table = statistics(evaluated[1])
    assert len(table) == 4 * 2 * 4
    groups = by_agent(scores).groupby(COLUMNS[:4])["d4rl_score"]
    middle = groups.apply(lambda runs: runs.sort_values().iloc[1:3].mean())  # of four
    expected = {"mean": groups.mean(), "min": groups.min(), "max": groups.max(), "iqm": middle}
    for name, values in expected.items():
        found = table.drop(index="all")[f"score_{name}"]
        pandas.testing.assert_series_equal(found, values, check_names=False)
    ratio = middle["Hopper", "bc", "snip", 0.95] / middle["Hopper", "bc", "dense", 0.0]
    assert table.loc[("Hopper", "bc", "snip", 0.95), "retention"] == pytest.approx(ratio)


def test_all_is_over_the_runs_of_all_environments(scores, evaluated):
    table = statistics(evaluated[1])
    runs = by_agent(scores).query("algorithm == 'bcq' and pruner == 'grasp'")["d4rl_score"]
    row = table.loc[("all", "bcq", "grasp", 0.95)]
    assert (row["seeds"], row["score_mean"]) == (4, pytest.approx(runs.mean()))
    assert row["score_iqm"] == pytest.approx(runs.sort_values().iloc[3:9].mean())  # of twelve
    each = [table.loc[(name, "bcq", "grasp", 0.95), "retention"] for name in ENVIRONMENTS]
    assert row["retention"] == pytest.approx(np.mean(each))


def test_retention_at_the_highest_sparsity_is_the_summary_and_the_metrics(evaluated):
    metrics, output = evaluated
    summary = json.loads((output / "evaluation.json").read_text())
    assert summary == metrics
    assert len(summary) == 4 * 2 * 2
    retention = statistics(output).loc[("Walker2d", "bc", "snip", 0.95), "retention"]
    assert summary["retention/Walker2d/bc/snip-0.95"] == pytest.approx(retention, abs=5e-5)


def test_the_order_of_rows_changes_no_byte(scores, evaluated, tmp_path):
    _, output = evaluate(scores.sample(frac=1, random_state=1), tmp_path)
    for name in ("statistics.csv", "evaluation.json"):
        assert (output / name).read_bytes() == (evaluated[1] / name).read_bytes()


def test_dense_scores_of_zero_or_less_have_no_retention(scores, tmp_path):
    dense = (
        (scores["pruner"] == "dense") & (scores["environment"] == "Hopper") & (scores["algorithm"] == "bc")
    )
    metrics, output = evaluate(scores.assign(d4rl_score=scores["d4rl_score"].mask(dense, -3.0)), tmp_path)
    table = statistics(output)
    for environment in ("Hopper", "all"):
        row = table.loc[(environment, "bc", "snip", 0.95)]
        assert row[["retention", "retention_low", "retention_high"]].isna().all()
        assert not math.isnan(row["score_iqm_low"])
        name = f"retention/{environment}/bc/snip-0.95"
        assert json.loads((output / "evaluation.json").read_text())[name] is None
        assert name not in metrics
    assert table.loc[("Hopper", "bcq", "snip", 0.95), "retention"] > 0
    assert table.loc[("Hopper", "bc", "dense", 0.0), "retention"] == 1


def test_one_dense_run_of_zero_leaves_an_estimate_without_bounds(scores, tmp_path):
    one = (scores["pruner"] == "dense") & (scores["environment"] == "Hopper") & (scores["seed"] == 1)
    changed = scores["d4rl_score"].mask(one & (scores["d4rl_score"] > 0), 0.0)
    row = statistics(evaluate(scores.assign(d4rl_score=changed), tmp_path)[1])
    row = row.loc[("Hopper", "bc", "snip", 0.95)]
    assert row["retention"] > 0
    assert row[["retention_low", "retention_high"]].isna().all()


@pytest.mark.parametrize("left", ["dense", "pruned"])
def test_dense_or_pruned_agents_alone_have_statistics_and_no_summary(scores, tmp_path, left):
    own = scores[(scores["pruner"] == "dense") == (left == "dense")]
    metrics, output = evaluate(own, tmp_path)
    assert metrics == {}
    assert len(statistics(output)) == 4 * 2 * (1 if left == "dense" else 3)


def test_a_missing_agent_is_named(scores, tmp_path):
    missing = "environment == 'Hopper' and algorithm == 'bcq' and pruner == 'grasp' and seed == 2"
    named = r"scores\.csv: no score of .*bcq.*grasp.*0\.95.*Hopper.*2.*dvc repro"
    with pytest.raises(UserError, match=named):
        evaluate(scores.query(f"not ({missing})"), tmp_path)


def test_the_intervals_are_of_the_configured_confidence(scores, evaluated, tmp_path):
    wide, narrow = (
        (table["score_iqm_high"] - table["score_iqm_low"]).loc["all"]
        for table in (statistics(evaluated[1]), statistics(evaluate(scores, tmp_path, confidence=0.5)[1]))
    )
    assert (narrow < 0.6 * wide).all()  # a third for a normal distribution
