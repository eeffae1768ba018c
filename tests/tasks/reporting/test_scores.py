import json
import math

import numpy as np
import pandas
import pytest

from singleshot.errors import UserError
from tasks.job import Job, Metrics
from tasks.reporting.scores import evaluate_scores
from tasks.reporting.statistics import BootstrapConfig

ENVIRONMENTS = ("HalfCheetah", "Hopper", "Walker2d")
LEVEL = {"dense": 80.0, "snip": 76.0, "grasp": 40.0}


@pytest.fixture
def scores():
    """Two algorithms' agents, of whose evaluations all but the last five are of no account."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "environment": environment,
            "algorithm": algorithm,
            "pruner": pruner,
            "sparsity": sparsity,
            "seed": seed,
            "update": update,
            "d4rl_score": rng.normal(LEVEL[pruner] - 20 * sparsity, 5) if update > last - 25 else -1e6,
        }
        for environment in ENVIRONMENTS
        for algorithm, last in (("bc", 35), ("bcq", 30))  # BC is longer trained
        for pruner, sparsity in (("dense", 0.0), ("snip", 0.5), ("snip", 0.95), ("grasp", 0.95))
        for seed in range(4)
        for update in range(5, last + 1, 5)
    ]
    return pandas.DataFrame(rows)


def by_agent(scores):
    """The mean of each agent's evaluations that count."""
    agent = ["environment", "algorithm", "pruner", "sparsity", "seed"]
    return scores[scores["d4rl_score"] > -1e6].groupby(agent)["d4rl_score"].mean().reset_index()


def evaluate(scores, directory, confidence=0.95):
    """The metrics and the files that the task leaves."""
    output = directory / "output"
    output.mkdir(parents=True)
    scores.to_csv(directory / "scores.csv", index=False)
    job = Job(
        BootstrapConfig(resamples=1000, confidence=confidence), {"scores": directory / "scores.csv"}, output
    )
    (event,) = evaluate_scores([job])
    assert isinstance(event, Metrics)
    return event.values, output


def statistics(output):
    table = pandas.read_csv(output / "statistics.csv")
    return table.set_index(["environment", "algorithm", "pruner", "sparsity"]).sort_index()


def without(scores, **values):
    """The scores without the agents of these values."""
    return scores[~np.logical_and.reduce([scores[name] == value for name, value in values.items()])]


def test_a_score_is_the_mean_of_the_last_five_evaluations_by_hand(tmp_path):
    """Of seven evaluations of one run and three of another, with their sample deviations."""
    runs = {0: [900, 900, 10, 20, 30, 40, 50], 1: [10, 20, 60]}
    rows = [
        ("Hopper", "bc", "dense", 0.0, seed, update, score)
        for seed, scores in runs.items()
        for update, score in enumerate(scores)
    ]
    columns = ["environment", "algorithm", "pruner", "sparsity", "seed", "update", "d4rl_score"]
    _, output = evaluate(pandas.DataFrame(rows[::-1], columns=columns), tmp_path)
    row = statistics(output).loc[("Hopper", "bc", "dense", 0.0)]
    assert row["score_mean"] == (30 + 30) / 2
    assert row["score_spread"] == pytest.approx((math.sqrt(1000 / 4) + math.sqrt(1400 / 2)) / 2)
    assert row["evaluations"] == 3  # of the run that has fewer
    single = pandas.DataFrame(rows[:1], columns=columns)
    table = statistics(evaluate(single, tmp_path / "single")[1])
    assert table["score_spread"].isna().all()


def test_statistics_are_those_of_the_last_scores(scores, tmp_path):
    _, output = evaluate(scores, tmp_path)
    table = statistics(output)
    assert len(table) == 4 * 2 * 4
    groups = by_agent(scores).groupby(["environment", "algorithm", "pruner", "sparsity"])["d4rl_score"]
    of_environments = table.drop(index="all")
    for column, expected in {"score_mean": groups.mean(), "score_min": groups.min()}.items():
        pandas.testing.assert_series_equal(of_environments[column], expected, check_names=False)
    pandas.testing.assert_series_equal(of_environments["score_max"], groups.max(), check_names=False)
    middle = groups.apply(lambda runs: runs.sort_values().iloc[1:3].mean())  # of four
    pandas.testing.assert_series_equal(of_environments["score_iqm"], middle, check_names=False)
    ratio = middle["Hopper", "bc", "snip", 0.95] / middle["Hopper", "bc", "dense", 0.0]
    assert table.loc[("Hopper", "bc", "snip", 0.95), "retention"] == pytest.approx(ratio)


def test_all_is_over_the_runs_of_all_tasks(scores, tmp_path):
    table = statistics(evaluate(scores, tmp_path)[1])
    runs = by_agent(scores).query("algorithm == 'bcq' and pruner == 'grasp'")["d4rl_score"]
    row = table.loc[("all", "bcq", "grasp", 0.95)]
    assert row["seeds"] == 4
    assert [row["score_mean"], row["score_min"], row["score_max"]] == pytest.approx(
        [runs.mean(), runs.min(), runs.max()]
    )
    assert row["score_iqm"] == pytest.approx(runs.sort_values().iloc[3:9].mean())  # of twelve
    of_environments = [
        table.loc[(environment, "bcq", "grasp", 0.95), "retention"] for environment in ENVIRONMENTS
    ]
    assert row["retention"] == pytest.approx(np.mean(of_environments))


def test_retention_at_the_highest_sparsity_is_the_summary_and_the_metrics(scores, tmp_path):
    metrics, output = evaluate(scores, tmp_path)
    summary = json.loads((output / "evaluation.json").read_text())
    assert summary == metrics
    assert set(summary) == {
        f"retention/{environment}/{algorithm}/{pruner}-0.95"
        for environment in (*ENVIRONMENTS, "all")
        for algorithm in ("bc", "bcq")
        for pruner in ("snip", "grasp")
    }
    retention = statistics(output).loc[("Walker2d", "bc", "snip", 0.95), "retention"]
    assert summary["retention/Walker2d/bc/snip-0.95"] == pytest.approx(retention, abs=5e-5)


def test_profiles_fall_from_all_runs_to_none(scores, tmp_path):
    profiles = pandas.read_csv(evaluate(scores, tmp_path)[1] / "profiles.csv")
    runs = by_agent(scores)
    for (algorithm, pruner, sparsity), profile in profiles.groupby(["algorithm", "pruner", "sparsity"]):
        chosen = (runs["algorithm"] == algorithm) & (runs["pruner"] == pruner)
        of_variant = runs[chosen & (runs["sparsity"] == sparsity)]["d4rl_score"]
        assert (profile["score"] == np.arange(profile["score"].min(), profile["score"].max() + 1)).all()
        expected = [(of_variant > score).mean() for score in profile["score"]]
        assert profile["fraction"].tolist() == pytest.approx(expected)
        assert (profile["fraction_low"] <= profile["fraction"] + 1e-12).all()
        assert (profile["fraction"] <= profile["fraction_high"] + 1e-12).all()
    ends = profiles.groupby(["algorithm", "pruner", "sparsity"])["fraction"]
    assert set(ends.first()) == {1}
    assert set(ends.last()) == {0}


def test_the_order_of_rows_changes_no_byte(scores, tmp_path):
    files = {}
    for name, order in {"as it is": scores, "shuffled": scores.sample(frac=1, random_state=1)}.items():
        _, output = evaluate(order, tmp_path / name)
        files[name] = {file.name: file.read_bytes() for file in output.iterdir()}
    assert files["as it is"] == files["shuffled"]
    assert set(files["shuffled"]) == {"statistics.csv", "profiles.csv", "evaluation.json"}


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
    with pytest.raises(
        UserError, match=r"scores\.csv: no score of .*bcq.*grasp.*0\.95.*Hopper.*2.*dvc repro"
    ):
        evaluate(without(scores, environment="Hopper", algorithm="bcq", pruner="grasp", seed=2), tmp_path)


def test_the_intervals_are_of_the_configured_confidence(scores, tmp_path):
    widths = {}
    for confidence in (0.5, 0.95):
        table = statistics(evaluate(scores, tmp_path / str(confidence), confidence=confidence)[1]).loc["all"]
        widths[confidence] = table["score_iqm_high"] - table["score_iqm_low"]
    assert (widths[0.5] < 0.6 * widths[0.95]).all()  # a third for a normal distribution
