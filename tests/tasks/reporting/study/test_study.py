"""The study's page on made-up tables, whose statistics are worked out here in another way."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pandas
import pytest
from study_tables import write_tables

from singleshot.errors import UserError
from tasks.reporting.statistics import BootstrapConfig
from tasks.reporting.study.claims import (
    BUDGET,
    BYTES,
    CHOICE,
    EXCEPTION,
    LAST_LAYER,
    NORMALIZED,
    PERFORMS,
    SCALES,
    all_claims,
)
from tasks.reporting.study.comparison import Group, final_scores, main_updates, matrices, score
from tasks.reporting.study.page import Experiment, write_page

ROOT = Path(__file__).parents[4]
BOOTSTRAP = BootstrapConfig(resamples=500)
EXPERIMENTS = [Experiment("main", pruned=40, pruned_finished=38, dense=4, dense_finished=4)]


def read(directory):
    tables = (pandas.read_csv(directory / f"{name}.csv") for name in ("scores", "layers"))
    return [table.assign(scope=table["scope"].fillna("")) for table in tables]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    directory = tmp_path_factory.mktemp("study")
    write_tables(directory, seeds=5)
    write_page(directory, EXPERIMENTS, 44, BOOTSTRAP)
    return directory


@pytest.fixture(scope="module")
def claims(study):
    scores, layers = read(study)
    return {
        (claim.claim, claim.agents, claim.masks): claim
        for claim in all_claims(final_scores(scores), layers, BOOTSTRAP)
    }


@pytest.fixture
def no_figures(monkeypatch):
    """For tests of the page's words: drawing takes half of a page's time."""
    monkeypatch.setattr("tasks.reporting.study.page._draw", lambda *_: None)
    monkeypatch.setattr("tasks.reporting.study.figures.draw_ablation", lambda *_: None)


def middle_half(values):
    """The interquartile mean by its definition: a quarter of the runs, rounded down, goes at either end."""
    cut = len(values) // 4
    return np.mean(np.sort(values)[cut : len(values) - cut])


def by_seed(study, task, algorithm, pruner, scope):
    scores, _ = read(study)
    own = scores[(scores["task"] == task) & (scores["algorithm"] == algorithm) & (scores["pruner"] == pruner)]
    own = own[(own["scope"] == scope) & (own["update"] == own["updates"])]
    own = own[own["updates"] == {"bc": 40, "bcq": 20}[algorithm]]
    return own.sort_values("seed")["d4rl_score"].to_numpy()


def test_retention_and_its_interval_are_another_implementation_s(study, claims):
    claim = claims[EXCEPTION, "Hopper, BCQ", "GraSP, scope part"]
    pruned = by_seed(study, "Hopper", "bcq", "grasp", "part")
    dense = by_seed(study, "Hopper", "bcq", "dense", "")
    value, low, high = resampled(pruned, dense, lambda a, b: middle_half(a) / middle_half(b))
    assert claim.estimate.value == pytest.approx(value)
    assert (claim.estimate.low, claim.estimate.high) == pytest.approx((low, high), abs=0.01)


def resampled(own, other, statistic):
    """A statistic of the scores of two groups with the same seeds, and its 95 % bootstrap interval."""
    random = np.random.default_rng(1)
    draws = random.integers(len(own), size=(5_000, len(own)))
    found = [statistic(own[drawn], other[drawn]) for drawn in draws]
    return statistic(own, other), *np.quantile(found, [0.025, 0.975])


@pytest.mark.parametrize("algorithm", ["bc", "bcq"])
@pytest.mark.parametrize("task", ["HalfCheetah", "Hopper", "Walker2d"])
def test_the_published_numbers_are_another_implementation_s(task, algorithm):
    """Retention and choice of weights of SNIP's agents in scope part, from the published scores."""
    published = pandas.read_csv(ROOT / "docs/study/claims.csv").set_index(["claim", "agents", "masks"])
    scores = final_scores(read(ROOT / "docs/study")[0])
    own = scores[
        (scores["task"] == task) & (scores["algorithm"] == algorithm) & (scores["updates"] == 25_000)
    ]
    own = own[~own["normalize_states"] & own["scope"].isin(["", "part"])]
    own = own[own["pruning_iterations"].fillna(1).eq(1) & own["pruning_batch_size"].fillna(100).eq(100)]
    own = own[own["sparsity"].isin([0, 0.95])]
    snip, shuffled, dense = (
        own[own["pruner"] == pruner].sort_values("seed")["d4rl_score"].to_numpy()
        for pruner in ("snip", "snip-shuffled", "dense")
    )
    at = f"{task}, {algorithm.upper()}", "SNIP, scope part"
    kept = EXCEPTION if (task, algorithm) == ("Hopper", "bcq") else PERFORMS
    for claim, other, statistic, tolerance in (
        (kept, dense, lambda a, b: middle_half(a) / middle_half(b), 0.01),
        (CHOICE, shuffled, lambda a, b: middle_half(a) - middle_half(b), 1),
    ):
        value, low, high = resampled(snip, other, statistic)
        row = published.loc[(claim, *at)]
        assert row["value"] == pytest.approx(value)
        assert (row["low"], row["high"]) == pytest.approx((low, high), abs=tolerance)


def test_differences_are_those_of_interquartile_means_of_the_same_seeds(study, claims):
    claim = claims[CHOICE, "HalfCheetah, BC", "SNIP, scope network"]
    own, shuffled = (
        by_seed(study, "HalfCheetah", "bc", pruner, "network") for pruner in ("snip", "snip-shuffled")
    )
    assert claim.estimate.value == pytest.approx(middle_half(own) - middle_half(shuffled))
    assert claim.estimate.seeds == 5


def test_verdicts_are_what_the_scores_were_made_for(claims):
    verdicts = {
        (claim, masks): found.verdict
        for (claim, agents, masks), found in claims.items()
        if agents == "Hopper, BC"
    }
    assert verdicts[PERFORMS, "SNIP, scope part"] == "holds"
    assert verdicts[PERFORMS, "GraSP, scope part"] == "does not hold"
    assert verdicts[CHOICE, "SNIP, scope part"] == "holds"
    assert verdicts[CHOICE, "GraSP, scope part"] == "undecided"
    assert verdicts[BUDGET, "GraSP, scope part"] == "holds"


def test_masks_are_compared_with_random_ones_of_their_scope(study, claims):
    scores, layers = read(study)
    better = (scores["pruner"] == "random") & (scores["scope"] == "network")
    agents = final_scores(scores.assign(d4rl_score=scores["d4rl_score"] + 30 * better))
    for claim in all_claims(agents, layers, BOOTSTRAP):
        if claim.claim == BUDGET:
            before = claims[BUDGET, claim.agents, claim.masks].estimate.value
            lower = 30 if claim.masks.endswith("network") else 0
            assert claim.estimate.value == pytest.approx(before - lower)


def test_densities_of_layers_are_compared(claims):
    """GraSP keeps 30 of the last layer's 1,000 weights and SNIP 40; all masks keep 100 of a part's 2,000."""
    last = claims[LAST_LAYER, "all tasks", "actor, scope part"]
    assert (last.estimate.value, last.verdict) == (pytest.approx(-1), "does not hold")
    saved = claims[BYTES, "all tasks, algorithms and networks", "SNIP, scope part"]
    assert (saved.estimate.value, saved.verdict) == (pytest.approx(4 / (20 * 0.05)), "holds")


def test_the_gain_by_normalised_states_is_counted_beyond_that_of_dense_agents(study):
    """Dense agents gain 5 points, SNIP's 30, GraSP's 4."""
    scores, layers = read(study)
    own = scores[(scores["task"] == "Hopper") & (scores["algorithm"] == "bc")]
    gains = own["pruner"].map({"dense": 5, "snip": 30, "grasp": 4}).fillna(0)
    normalized = own.assign(normalize_states=True, d4rl_score=own["d4rl_score"] + gains)
    agents = final_scores(pandas.concat([scores, normalized]))
    every = all_claims(agents, layers, BOOTSTRAP)
    found = {claim.masks: claim for claim in every if claim.claim == SCALES}
    assert {claim.agents for claim in found.values()} == {"Hopper, BC"}
    assert (CHOICE, "Hopper, BC, normalised states") in {(claim.claim, claim.agents) for claim in every}
    snip, grasp = (found[f"{pruner}, scope part"] for pruner in ("SNIP", "GraSP"))
    assert (snip.estimate.value, snip.verdict) == (pytest.approx(25), "holds")
    assert (grasp.estimate.value, grasp.verdict) == (pytest.approx(-1), "does not hold")


CELL = re.compile(r"(-?[\d.,]+) \((-?[\d.,]+) to (-?[\d.,]+)\): (holds|does not hold|undecided)")
THRESHOLDS = {
    **dict.fromkeys([PERFORMS, EXCEPTION, NORMALIZED], 0.9),
    **dict.fromkeys([CHOICE, BUDGET, LAST_LAYER, SCALES], 0),
    BYTES: 3.95,
}


def printed_verdicts(page):
    """Threshold, interval and verdict of each cell of the claims' tables, as if all claims were of more."""
    claim = ""
    for line in page.splitlines():
        claim = next((each for each in THRESHOLDS if each in line), claim)
        for _, low, high, verdict in CELL.findall(line):
            if claim == EXCEPTION:
                verdict = {"holds": "does not hold", "does not hold": "holds"}.get(verdict, verdict)
            yield THRESHOLDS[claim], float(low.replace(",", "")), float(high.replace(",", "")), verdict


def assert_no_verdict_goes_beyond_its_interval(page):
    for threshold, low, high, verdict in printed_verdicts(page):
        allowed = {"holds": low > threshold, "does not hold": high < threshold}.get(verdict, True)
        close = min(abs(low - threshold), abs(high - threshold)) < 0.01  # what is printed is rounded
        assert allowed or close, (threshold, low, high, verdict)


def test_no_verdict_goes_beyond_its_interval(study):
    page = (study / "README.md").read_text()
    assert len(list(printed_verdicts(page))) == 3 * 4 * 4 + 3 + 2
    assert_no_verdict_goes_beyond_its_interval(page)


def test_no_published_verdict_goes_beyond_its_interval():
    published = ROOT / "docs/study/README.md"
    assert_no_verdict_goes_beyond_its_interval(published.read_text())


def test_the_readme_has_the_study_s_numbers():
    readme = (ROOT / "README.md").read_text()
    agents = final_scores(read(ROOT / "docs/study")[0])
    expected = []
    for algorithm, task in product(("bc", "bcq"), ("HalfCheetah", "Hopper", "Walker2d")):
        pruners = ("dense", "snip", "snip-shuffled", "random")
        scores = [score(agents, Group(algorithm, pruner), [task], BootstrapConfig()) for pruner in pruners]
        if all(each and each.interval for each in scores):
            expected.append(f"| {task}, {algorithm.upper()} | {' | '.join(map(rounded, scores))} |")
    rows = re.findall(r"^ *(\| \w+, BCQ? \|.*)$", readme.replace("**", ""), re.MULTILINE)
    assert rows == expected
    assert sum(", BC |" in row for row in rows) == 3
    snip, grasp, dense = (
        rounded(score(agents, Group("bc", pruner, normalize_states=True), ["HalfCheetah"], BootstrapConfig()))
        for pruner in ("snip", "grasp", "dense")
    )
    sentence = f"SNIP scores {snip} there, GraSP {grasp} and dense agents {dense}"
    assert sentence in " ".join(readme.split())


def rounded(estimate):
    return f"{estimate.value:.0f} ({estimate.low:.0f} to {estimate.high:.0f})"


def test_two_seeds_are_too_few_to_say(tmp_path):
    write_tables(tmp_path, seeds=2)
    write_page(tmp_path, [], 0, BOOTSTRAP)
    assert set(pandas.read_csv(tmp_path / "claims.csv")["verdict"]) == {"too few seeds"}
    assert "too few seeds" in (tmp_path / "README.md").read_text()


def test_groups_are_compared_on_the_seeds_that_all_have(study):
    scores, _ = read(study)
    agents = final_scores(scores)
    missing = (agents["pruner"] == "snip") & (agents["seed"] == 3) & (agents["task"] == "Hopper")
    own, dense = matrices(agents[~missing], [Group("bc", "snip"), Group("bc")], ["HalfCheetah", "Hopper"])
    assert own.shape == dense.shape == (2, 4)
    assert own[1].tolist() == np.delete(by_seed(study, "Hopper", "bc", "snip", "part"), 3).tolist()


def test_the_pilot_is_told_from_the_study(study):
    scores, _ = read(study)
    assert main_updates(final_scores(scores), "bc") == 40
    assert "| HalfCheetah, BC | dense |" in (study / "README.md").read_text()


@pytest.mark.parametrize(("percent", "within"), [(95.1, 1), (94.6, 0), (105.4, 0)])
def test_a_pilot_within_five_percent_is_told_by_its_score_not_by_its_rounded_difference(
    tmp_path, no_figures, monkeypatch, percent, within
):
    monkeypatch.setattr("tasks.reporting.study.page.all_claims", lambda *_: [])  # they are of no pilot
    write_tables(tmp_path, seeds=2)  # of which one has a pilot
    scores = pandas.read_csv(tmp_path / "scores.csv")
    dense = (scores["algorithm"] == "bc") & (scores["pruner"] == "dense") & (scores["task"] == "HalfCheetah")
    longer = dense & (scores["updates"] > 40)
    seeds = scores.loc[longer, "seed"]
    scores.loc[longer, "d4rl_score"] = 100.0
    scores.loc[dense & (scores["updates"] == 40) & scores["seed"].isin(seeds), "d4rl_score"] = percent
    # Other pilots, if there are any, would count too.
    scores = scores[~((scores["updates"] > scores["algorithm"].map({"bc": 40, "bcq": 20})) & ~longer)]
    scores.to_csv(tmp_path / "scores.csv", index=False)
    write_page(tmp_path, EXPERIMENTS, 44, BOOTSTRAP)
    page = " ".join((tmp_path / "README.md").read_text().split())
    assert f"which {within} of 1 do" in page


def test_the_page_is_the_same_each_time_and_shows_its_figures(study, tmp_path):
    write_tables(tmp_path, seeds=5)
    write_page(tmp_path, EXPERIMENTS, 44, BOOTSTRAP)
    page = (tmp_path / "README.md").read_text()
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (study / path.name).read_bytes(), path.name
        assert path.suffix != ".svg" or f"({path.name})" in page
    assert "| `main` | 40 | 38 | 4 | 4 |" in page
    assert "`main` 38 of 40." in page


def test_a_missing_table_is_a_user_s_mistake(tmp_path):
    with pytest.raises(UserError, match=r"scores\.csv: no such file; run `python -m pipelines study`"):
        write_page(tmp_path, [], 0, BOOTSTRAP)


@pytest.mark.parametrize("name", ["scores.csv", "layers.csv", "runs.csv"])
@pytest.mark.parametrize(
    ("line", "told"),
    [
        (0, "has no column 'updates'"),
        (1, "'<<<<<<< HEAD' in the column 'updates' is no number"),
        (9, "'<<<<<<< HEAD' in the column 'updates' is no number"),
    ],
)
def test_a_table_in_conflict_is_a_user_s_mistake(tmp_path, name, line, told):
    write_tables(tmp_path, seeds=1)
    lines = (tmp_path / name).read_text().splitlines()
    (tmp_path / name).write_text("\n".join([*lines[:line], "<<<<<<< HEAD", *lines[line:]]))
    with pytest.raises(UserError, match=rf"{name}: {told}; get it back with `git checkout HEAD .*{name}`"):
        write_page(tmp_path, [], 0, BOOTSTRAP)


def test_a_table_that_is_no_csv_or_lacks_a_column_is_a_user_s_mistake(tmp_path):
    write_tables(tmp_path, seeds=1)
    runs = pandas.read_csv(tmp_path / "runs.csv")
    runs.drop(columns="seconds").to_csv(tmp_path / "runs.csv", index=False)
    with pytest.raises(UserError, match=r"runs\.csv: has no column 'seconds'; get it back"):
        write_page(tmp_path, [], 0, BOOTSTRAP)
    (tmp_path / "runs.csv").write_text("")
    with pytest.raises(UserError, match=r"runs\.csv: EmptyDataError: .*; get it back"):
        write_page(tmp_path, [], 0, BOOTSTRAP)


def test_agents_of_other_sparsities_have_a_table_and_are_in_no_other(study, tmp_path, no_figures):
    write_tables(tmp_path, seeds=5)
    scores = pandas.read_csv(tmp_path / "scores.csv")
    snip = (scores["pruner"] == "snip") & (scores["scope"] == "part") & (scores["algorithm"] == "bc")
    others = scores[snip & (scores["updates"] == 40)].assign(sparsity=0.5, d4rl_score=1.0)
    pandas.concat([scores, others]).to_csv(tmp_path / "scores.csv", index=False)
    write_page(tmp_path, EXPERIMENTS, 44, BOOTSTRAP)
    before, after = ((directory / "README.md").read_text().splitlines() for directory in (study, tmp_path))
    new = [line for line in after if line not in before]
    row = next(line for line in new if line.startswith("| Hopper, BC | SNIP |"))
    assert row.split("|")[4] == " 1.0 (1.0 to 1.0) "
    assert [line for line in before if line.startswith("| ") and line not in after] == []
