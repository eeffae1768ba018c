"""The study's pages on made-up tables, whose statistics are worked out here in another way."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pandas
import pytest
import scipy
from study_tables import write_tables

from singleshot.errors import UserError
from tasks.reporting.statistics import BootstrapConfig
from tasks.reporting.study.claims import CLAIMS
from tasks.reporting.study.comparison import Group
from tasks.reporting.study.page import ExperimentProgress, Page, read_study, write_page

ROOT = Path(__file__).parents[4]
PUBLISHED = ROOT / "docs/study"
BOOTSTRAP = BootstrapConfig(resamples=2_000)
EXPERIMENTS = [ExperimentProgress("main", pruned=40, pruned_finished=38, dense=4, dense_finished=4)]
PERFORMS, EXCEPTION, CHOICE, BUDGET = (
    CLAIMS[key].sentence for key in ("performs", "exception", "choice", "budget")
)
LAST = 5
"""Number of an agent's evaluations that count."""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    directory = tmp_path_factory.mktemp("study")
    write_tables(directory, seeds=5)
    write_page(directory, EXPERIMENTS, 44, BOOTSTRAP)
    return directory


@pytest.fixture
def no_figures(monkeypatch):
    """For tests of the page's words: drawing takes half of a page's time."""
    monkeypatch.setattr("tasks.reporting.study.page._draw", lambda *_: [])


@pytest.fixture
def tables(tmp_path, no_figures):
    """Writes made-up tables after a change of the scores, then the pages from them."""

    def write(change=lambda scores: scores, seeds=5):
        write_tables(tmp_path, seeds)
        path = tmp_path / "scores.csv"
        change(pandas.read_csv(path, keep_default_na=False)).to_csv(path, index=False)
        write_page(tmp_path, EXPERIMENTS, 44, BOOTSTRAP)
        return tmp_path

    return write


def rows_of(scores, **values):
    """The rows with these values."""
    return scores[np.logical_and.reduce([scores[name].astype(str) == str(v) for name, v in values.items()])]


def also(scores, rows, **values):
    """The scores with further rows, which are `rows` with other values."""
    return pandas.concat([scores, rows.assign(**values)])


def by_seed(directory, updates, **values):
    """An agent's score by seed: the mean of its last five evaluations."""
    own = rows_of(pandas.read_csv(directory / "scores.csv", keep_default_na=False), updates=updates, **values)
    agents = own.sort_values("update").groupby("seed")["d4rl_score"]
    return agents.apply(lambda evaluations: evaluations.iloc[-LAST:].mean()).to_numpy()


def claims_of(directory):
    entry = ["claim", "agents", "normalize_states", "masks"]
    return pandas.read_csv(directory / "claims.csv").set_index(entry).sort_index()


def test_a_retention_is_another_implementation_s(study):
    row = claims_of(study).loc[EXCEPTION, "Hopper, BCQ", False, "GraSP, scope part"]
    agents = {"updates": 20, "environment": "Hopper", "algorithm": "bcq"}
    pruned = by_seed(study, **agents, pruner="grasp", scope="part")
    dense = by_seed(study, **agents, pruner="dense")
    assert row["value"] == pytest.approx(pruned.mean() / dense.mean())
    for bound in (row["low"], row["high"]):
        assert scipy.stats.ttest_1samp(pruned - bound * dense, 0).pvalue == pytest.approx(0.05)
    assert row["p"] == pytest.approx(scipy.stats.ttest_rel(pruned, 0.9 * dense).pvalue)
    assert (row["seeds"], row["draws"], row["verdict"]) == (5, "shared", "holds")  # it is below 0.9


def resampled(own, other, compared):
    """The 95 % bootstrap interval of a comparison of means by a plain loop over resamples of the seeds."""
    random = np.random.default_rng(1)
    found = []
    for _ in range(20_000):
        drawn = random.integers(len(own), size=len(own))
        found.append(compared(own[drawn].mean(), other[drawn].mean()))
    return np.quantile(found, [0.025, 0.975])


@pytest.mark.parametrize("algorithm", ["bc", "bcq"])
@pytest.mark.parametrize("environment", ["HalfCheetah", "Hopper", "Walker2d"])
def test_the_published_numbers_are_another_implementation_s(environment, algorithm):
    """Retention and choice of weights of SNIP's agents in scope part, from the published scores."""
    published = claims_of(PUBLISHED)
    own = pandas.read_csv(PUBLISHED / "scores.csv")
    own = own[
        (own["environment"] == environment) & (own["algorithm"] == algorithm) & (own["updates"] == 25_000)
    ]
    own = own[~own["normalize_states"] & own["sparsity"].isin([0, 0.95]) & own["scope"].ne("network")]
    own = own[own["pruning_iterations"].fillna(1).eq(1) & own["pruning_batch_size"].fillna(100).eq(100)]
    at = f"{environment}, {algorithm.upper()}", False, "SNIP, scope part"
    kept = EXCEPTION if (environment, algorithm) == ("Hopper", "bcq") else PERFORMS
    own = own[own["batch_size"].eq(100) & own["failed_episodes"].fillna(0).eq(0)].sort_values("update")

    def scores(pruner, draws):
        drawn = own["seed"].astype(str) if draws == "own" else "shared"
        agents = own[own["pruner"].eq(pruner) & own["data_seed"].astype(str).eq(drawn)].groupby("seed")
        return agents["d4rl_score"].apply(lambda evaluations: evaluations.iloc[-LAST:].mean()).to_numpy()

    for claim, pruner, compared, factor, tolerance in (
        (kept, "dense", np.divide, 0.9, 0.01),
        (CHOICE, "snip-shuffled", np.subtract, 1, 1),
    ):
        row = published.loc[(claim, *at)]
        snip, other = scores("snip", row["draws"]), scores(pruner, row["draws"])
        assert row["value"] == pytest.approx(compared(snip.mean(), other.mean()))
        assert row["p"] == pytest.approx(scipy.stats.ttest_rel(snip, factor * other).pvalue)
        interval = resampled(snip, other, compared)
        assert (row["bootstrap_low"], row["bootstrap_high"]) == pytest.approx(tuple(interval), abs=tolerance)


def stepped_down(p_values):
    """Holm's adjusted p-values by a plain loop."""
    adjusted, largest = {}, 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = largest
    return [adjusted[i] for i in range(len(p_values))]


@pytest.mark.parametrize("where", ["made up", "published"])
def test_a_verdict_needs_both_tests_after_holm_s_correction_over_its_table(study, where):
    directory = {"made up": study, "published": PUBLISHED}[where]
    thresholds = {claim.sentence: (claim.threshold, claim.below) for claim in CLAIMS.values()}
    decided = 0
    for claim, rows in pandas.read_csv(directory / "claims.csv").groupby("claim"):
        threshold, below = thresholds[claim]
        tested = rows.dropna(subset="p")
        for kind in ("p", "bootstrap_p"):
            assert tested[f"{kind}_holm"].tolist() == pytest.approx(stepped_down(tested[kind].tolist()))
        for row in tested.itertuples():
            if row.p_holm < 0.05 and row.bootstrap_p_holm < 0.05:
                assert row.verdict == ("holds" if (row.value < threshold) == below else "does not hold")
                assert not row.low <= threshold <= row.high
                decided += 1
            else:
                assert row.verdict == "undecided"
        assert set(rows[rows["p"].isna()]["verdict"]) <= {"too few seeds"}
    assert decided > 10


def test_verdicts_are_what_the_scores_were_made_for(study):
    claims = claims_of(study)["verdict"]
    at = "Hopper, BC", False
    assert claims[PERFORMS, *at, "SNIP, scope part"] == "holds"
    assert claims[PERFORMS, *at, "GraSP, scope part"] == "does not hold"
    assert claims[CHOICE, *at, "SNIP, scope part"] == "holds"
    assert claims[CHOICE, *at, "GraSP, scope part"] == "undecided"
    assert claims[BUDGET, *at, "GraSP, scope part"] == "holds"


def test_densities_of_layers_are_compared(study):
    """GraSP keeps 30 of the last layer's 1,000 weights and SNIP 40; all masks keep 100 of a part's 2,000."""
    claims = claims_of(study)
    last = claims.loc[CLAIMS["last layer"].sentence, "all", False, "actor, scope part"]
    assert (last["value"], last["verdict"]) == (pytest.approx(-1), "does not hold")
    saved = claims.loc[CLAIMS["bytes"].sentence, "all", False, "SNIP, scope part"]
    assert (saved["value"], saved["verdict"]) == (pytest.approx(4 / (20 * 0.05)), "holds")


def test_masks_are_compared_with_random_ones_of_their_scope(study, tables):
    def better(scores):
        better = (scores["pruner"] == "random") & (scores["scope"] == "network")
        return scores.assign(d4rl_score=scores["d4rl_score"] + 30 * better)

    before, after = claims_of(study).loc[BUDGET], claims_of(tables(better)).loc[BUDGET]
    lower = before["value"] - after["value"]
    assert lower.to_numpy() == pytest.approx([30 if at[2].endswith("network") else 0 for at in lower.index])


def normalized(scores, gains, **values):
    """The scores, and those of some agents with normalised states, which gain points by their pruner."""
    own = rows_of(scores, **values)
    points = own["pruner"].map(gains).fillna(0)
    states = {"normalize_states": True, "pruning_normalize_states": np.where(own["scope"] == "", "", "True")}
    return also(scores, own, **states, d4rl_score=own["d4rl_score"] + points)


def test_the_gain_by_normalised_states_is_counted_beyond_that_of_dense_agents(tables):
    gains = {"dense": 5, "snip": 30, "grasp": 4}
    directory = tables(lambda scores: normalized(scores, gains, environment="Hopper", algorithm="bc"))
    found = claims_of(directory).loc[CLAIMS["scales"].sentence, "Hopper, BC", True]
    assert found.loc["SNIP, scope part", "value"] == pytest.approx(25)
    assert found.loc["SNIP, scope part", "verdict"] == "holds"
    assert found.loc["GraSP, scope part", "value"] == pytest.approx(-1)
    assert claims_of(directory).loc[(PERFORMS, "Hopper, BC", True, "SNIP, scope part"), "seeds"] == 5
    page = (directory / "scores.md").read_text()
    assert page.index("| Hopper, BC, raw |") < page.index("| Hopper, BC, normalised |")


def of_own_draws(scores, seeds, shift):
    """SNIP's and dense agents of BC on Hopper once more, each seed on its own draw of the data."""
    own = rows_of(scores, environment="Hopper", algorithm="bc")
    own = own[own["pruner"].isin(["dense", "snip"]) & (own["scope"] != "network") & (own["seed"] < seeds)]
    own = own.assign(data_seed=own["seed"], failed_episodes="0")
    return also(scores, own, d4rl_score=own["d4rl_score"] - shift)


@pytest.mark.parametrize(("seeds", "draws"), [(2, "shared"), (3, "own"), (5, "own")])
def test_own_draws_of_the_data_are_compared_where_three_seeds_are_complete(tables, seeds, draws):
    directory = tables(lambda scores: of_own_draws(scores, seeds, shift=50))
    row = claims_of(directory).loc[PERFORMS, "Hopper, BC", False, "SNIP, scope part"]
    assert (row["draws"], row["seeds"]) == (draws, seeds if draws == "own" else 5)
    study = read_study(directory, BOOTSTRAP)
    pair = [Group("Hopper", "bc", pruner) for pruner in ("snip", "dense")]
    snip, dense = study.on_best_draws(pair)
    assert snip.draws == dense.draws == draws
    # Agents of the two kinds are never compared with each other: 50 points would be the difference.
    assert abs(study.compare(snip, dense).value) < 10
    # Other masks of these agents are on the shared draw alone; a row of a table has one kind of draws.
    first = next(
        line for line in (directory / "scores.md").read_text().splitlines() if "Hopper, BC, raw" in line
    )
    assert first.startswith(f"| Hopper, BC, raw | {'5, one' if draws == 'shared' else f'{seeds}, own'} |")
    assert first.count("–") == (4 if draws == "own" else 0)


def test_groups_are_compared_on_the_seeds_that_both_have(tables):
    def without(scores):
        return scores.drop(rows_of(scores, pruner="snip", environment="Hopper", seed=3).index)

    directory = tables(without)
    agents = {"updates": 40, "environment": "Hopper", "algorithm": "bc"}
    snip = by_seed(directory, **agents, pruner="snip", scope="part")
    dense = np.delete(by_seed(directory, **agents, pruner="dense"), 3)
    found = read_study(directory, BOOTSTRAP).compare(Group("Hopper", "bc", "snip"), Group("Hopper", "bc"))
    assert found.seeds == 4
    assert found.value == pytest.approx((snip - dense).mean())
    assert "(4 seeds)" not in (directory / "scores.md").read_text()  # four are enough for an interval
    assert "; 4 seeds)" in (directory / "scores.md").read_text()


def test_long_training_is_compared_with_dense_agents_of_the_usual_length_if_few_are_as_long(tables):
    """Seed 0 alone has dense agents of twice the length."""

    def added(scores):
        own = rows_of(scores, pruner="snip", algorithm="bc")
        return also(scores, own, updates=80, update=2 * own["update"])

    directory = tables(added)
    study = read_study(directory, BOOTSTRAP)
    assert study.usual_updates == {"bc": 40, "bcq": 20}
    assert study.dense_of(Group("Hopper", "bc", "snip", updates=80)).updates is None
    assert study.dense_of(Group("Hopper", "bc", "snip", updates=40)).updates == 40
    row = claims_of(directory).loc[PERFORMS, "Hopper, BC, 80 updates", False, "SNIP, scope part"]
    assert row["seeds"] == 5
    assert "| 40 | 80 |" in (directory / "length.md").read_text()
    assert f"{PERFORMS}, after 80 updates" in (directory / "README.md").read_text()


def test_other_algorithms_have_rows_and_a_claim_of_their_own(study, tables):
    """TD3+BC and IQL train on batches of 256, and the paper's own claims stay those of its algorithms."""

    def added(scores):
        own = rows_of(scores, environment="Hopper", algorithm="bc", updates=40)
        return also(scores, own, algorithm="td3bc", batch_size=256)

    directory = tables(added)
    before, after = claims_of(study), claims_of(directory)
    pandas.testing.assert_frame_equal(after.loc[[PERFORMS]], before.loc[[PERFORMS]])
    snip_on_raw_states = (False, "SNIP, scope part")
    others = after.loc[CLAIMS["others"].sentence, "Hopper, TD3+BC", *snip_on_raw_states]
    assert others["value"] == before.loc[(PERFORMS, "Hopper, BC", *snip_on_raw_states), "value"]
    assert "| Hopper, TD3+BC, raw |" in (directory / "scores.md").read_text()
    assert "| TD3+BC | Hopper " in (directory / "README.md").read_text()


OTHER_GROUPS = {
    "alternatives.md": ({"pruner": "erk"}, "| dense | SNIP | GraSP | SNIP, shuffled | random | ERK |"),
    "why.md": ({"pruner": "snip-blind"}, "| SNIP | SNIP, shuffled | SNIP, blind | dense |"),
    "settings.md": ({"sparsity": 0.5}, "| 50 % pruned | 95 % pruned |"),
}


@pytest.mark.parametrize("page", OTHER_GROUPS)
def test_agents_of_other_experiments_have_a_table_and_change_no_other(study, tables, page):
    values, head = OTHER_GROUPS[page]

    def added(scores):
        own = rows_of(scores, pruner="snip", scope="part", algorithm="bc")
        return also(scores, own, **values, d4rl_score=1.0)

    directory = tables(added)
    assert head not in (study / page).read_text()
    assert head in (directory / page).read_text().replace("\u00a0", " ")
    assert (directory / "scores.md").read_text() == (study / "scores.md").read_text()


def test_the_author_s_and_other_data_have_their_tables(study, tables):
    def added(scores):
        for share in ("0", "0.1"):
            own = rows_of(scores, pruner="snip", scope="part", data_seed="shared")
            draws = {"data_seed": own["seed"], "failed_episodes": share}
            scores = also(scores, own, **draws, d4rl_score=own["d4rl_score"] - 400 * float(share))
        own = scores[scores["scope"].isin(["", "network"]) & (scores["algorithm"] == "bc")]
        return normalized(also(scores, own, batch_size=256), {}, batch_size=256)

    page = (tables(added) / "settings.md").read_text().replace("\u00a0", " ")
    assert "| 0 % failed | 10 % failed |" in page
    assert "## The author's later code" in page
    assert "## Failed episodes" not in (study / "settings.md").read_text()


def test_draws_and_seeds_are_told_apart_where_they_are_crossed(tables):
    def crossed(scores):
        own = rows_of(scores, pruner="snip", environment="Hopper", algorithm="bc", scope="part")
        for draw in range(4):
            crossed = {"data_seed": draw, "failed_episodes": "0"}
            scores = also(scores, own, **crossed, d4rl_score=50 + 10 * draw + own["seed"])
        return scores

    page = (tables(crossed) / "methods.md").read_text()
    # 10 · the standard deviation of 0 to 3, and that of the seeds 0 to 4
    assert "| Hopper, BC, raw | SNIP | 4 × 5 | 13 | 1.6 | 0 |" in page


COST = re.compile(r"\*\*([+−]?\d+) \(([+−]?\d+) to ([+−]?\d+)\)\*\*")
CELL = re.compile(r"([−-]?[\d.,]+) \(([−-]?[\d.,]+) to ([−-]?[\d.,]+)\): (holds|does not hold)")


def differences_stated(text):
    """Lower and upper bound of each difference that a page states as one, with what it must not contain."""
    claim = None
    by_sentence = {own.sentence: own for own in CLAIMS.values()}
    for line in text.splitlines():
        claim = next((own for sentence, own in by_sentence.items() if f"**{sentence}.**" in line), claim)
        for _, low, high in COST.findall(line):
            yield 0, low, high
        for _, low, high, _ in CELL.findall(line):
            yield claim.threshold, low, high


@pytest.mark.parametrize("where", ["made up", "published"])
def test_no_page_states_a_difference_whose_interval_includes_zero(study, where):
    directory = {"made up": study, "published": PUBLISHED}[where]
    count = 0
    for page in [*sorted(directory.glob("*.md")), ROOT / "README.md"]:
        for threshold, *bounds in differences_stated(page.read_text()):
            low, high = (float(bound.replace("−", "-").replace(",", "")) for bound in bounds)
            close = min(abs(low - threshold), abs(high - threshold)) < 0.6  # what is printed is rounded
            assert threshold < low or high < threshold or close, (page.name, threshold, low, high)
            count += 1
    assert count > 10


def test_published_pages_are_those_of_the_published_tables(tmp_path, no_figures):
    """Their words; the numbers of experiments are those of conf/study.yaml."""
    for table in ("scores.csv", "layers.csv", "runs.csv"):
        (tmp_path / table).symlink_to(PUBLISHED / table)
    write_page(tmp_path, [], 0, BootstrapConfig())
    assert (tmp_path / "claims.csv").read_bytes() == (PUBLISHED / "claims.csv").read_bytes()
    for page in ("scores.md", "claims.md", "alternatives.md", "settings.md"):
        assert (tmp_path / page).read_text() == (PUBLISHED / page).read_text(), page


def test_the_readme_has_the_study_s_numbers():
    readme = (ROOT / "README.md").read_text()
    study = read_study(PUBLISHED, BootstrapConfig())
    expected = []
    for environment, algorithm, normalize in product(
        ("HalfCheetah", "Hopper", "Walker2d"), ("bc", "bcq"), (False, True)
    ):
        pruners = ("dense", "snip", "snip-shuffled", "random")
        groups = [Group(environment, algorithm, pruner, normalize) for pruner in pruners]
        scores = [study.score(group) for group in study.on_best_draws(groups)]
        if all(each and each.interval for each in scores):
            states = "normalised" if normalize else "raw"
            row = " | ".join(f"{s.value:.0f} ({s.low:.0f} to {s.high:.0f})" for s in scores)
            expected.append(f"| {environment}, {algorithm.upper()}, {states} | {row} |")
    rows = re.findall(r"^ *(\| \w+, \w+, (?:raw|normalised) \|.*)$", readme, re.MULTILINE)
    assert sorted(row.replace("**", "") for row in rows) == sorted(expected)
    table = (PUBLISHED / "scores.md").read_text().splitlines()
    for row in rows:  # in scores.md: agents, data sets, dense, SNIP, shuffled, GraSP, shuffled, random
        label, *cells = row.strip("|").split("|")
        published = next(line for line in table if line.startswith(f"|{label}|")).strip("|").split("|")
        bold = ["**" in published[column] for column in (2, 3, 4, 7)]
        assert ["**" in cell for cell in cells] == bold, label


def test_two_seeds_are_too_few_to_say(tables):
    directory = tables(seeds=2)
    assert set(pandas.read_csv(directory / "claims.csv")["verdict"]) == {"too few seeds"}
    assert "(2 seeds)" in (directory / "scores.md").read_text()
    assert not list(differences_stated((directory / "README.md").read_text()))


def test_the_pages_are_the_same_each_time_and_show_their_figures(study, tmp_path):
    write_tables(tmp_path, seeds=5)
    write_page(tmp_path, EXPERIMENTS, 44, BOOTSTRAP)
    pages = "".join(page.read_text() for page in tmp_path.glob("*.md"))
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (study / path.name).read_bytes(), path.name
        assert path.suffix != ".svg" or f"({path.name})" in pages
    missing = (tmp_path / "methods.md").read_text().partition("## What is missing")[2]
    assert "| `main` | 40 | 38 | 4 | 4 |" in missing


def test_links_between_the_pages_lead_somewhere(study):
    for page in study.glob("*.md"):
        for target, _, anchor in re.findall(r"\]\(([\w.]+)(#([\w-]+))?\)", page.read_text()):
            linked = PUBLISHED / target if target == "default.md" else study / target
            assert linked.exists(), (page.name, target)
            heads = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE) if anchor else []
            anchors = [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads]
            assert not anchor or anchor in anchors, (page.name, target, anchor)


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


def test_a_table_shows_scores_that_differ_from_its_reference_in_bold(study):
    page = Page(read_study(study, BOOTSTRAP), [], 0)
    lines = page.table("pruner", ["dense", "snip", "grasp"], against="dense").splitlines()
    assert lines[0] == "| agents | seeds, data sets | dense | SNIP | GraSP |"
    for line in lines[2:]:
        dense, snip, grasp = line.split("|")[3:6]
        assert "**" in grasp
        assert "**" not in dense
        assert all("±3.2" in cell for cell in (dense, snip, grasp))  # √10, of -4, -2, 0, 2 and 4
