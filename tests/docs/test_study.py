"""The study's pages: a claim, an interval and counts, worked out in another way; are they up to date?"""

import importlib.util
import re
import shutil

import numpy as np
import pandas
import pytest
import scipy
import yaml
from checkouts import ROOT

PAGES = ROOT / "docs/study"
AT_FIVE_PERCENT = {"updates": "25000", "normalize_states": "True", "failed_episodes": "0", "scope": "part"}
NETWORK = {"bc": {"actor": "vae", "hidden": "750-750"}, "bcq": {"hidden": "400-300"}}


@pytest.fixture(scope="module")
def make_page():
    spec = importlib.util.spec_from_file_location("make_page", PAGES / "make_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def study(make_page):
    return make_page.Study(PAGES)


def scores(environment, algorithm, pruner):
    """Scores by seed of agents on normalised states and own draws: the mean of the last five evaluations."""
    rows = pandas.read_csv(PAGES / "scores.csv", dtype=str, keep_default_na=False)
    wanted = {
        **AT_FIVE_PERCENT,
        **NETWORK[algorithm],
        "transitions": "1000000",
        "environment": environment,
        "algorithm": algorithm,
        "pruner": pruner,
    }
    if pruner == "dense":
        del wanted["scope"]
    else:
        wanted |= {"sparsity": "0.95", "pruning_normalize_states": "True", "pruning_iterations": "1"}
        wanted["pruning_batch_size"] = "100"
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    rows = rows[rows["data_seed"] == rows["seed"]]
    found = {}
    for seed, own in rows.groupby("seed"):
        last = sorted(zip(own["update"].astype(int), own["d4rl_score"].astype(float), strict=True))[-5:]
        found[seed] = sum(score for _, score in last) / 5
    return pandas.Series(found)


@pytest.mark.slow
def test_a_pooled_claim_is_a_plain_t_test_over_seeds(make_page, study):
    cases = [
        scores(environment, algorithm, "snip") - scores(environment, algorithm, "dense")
        for environment in ("HalfCheetah", "Hopper", "Walker2d")
        for algorithm in ("bc", "bcq")
    ]
    by_seed = pandas.concat(cases, axis=1).dropna().mean(axis=1)
    expected = scipy.stats.ttest_1samp(by_seed, 0)
    (of_seeds, _), cases = study.tests(make_page.SNIP, make_page.DENSE, make_page.PAPER)
    assert of_seeds.value == pytest.approx(by_seed.mean())
    assert (of_seeds.low, of_seeds.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert of_seeds.p == pytest.approx(expected.pvalue)
    assert (of_seeds.seeds, cases) == (len(by_seed), 6)


def test_a_claim_s_p_value_is_the_larger_one_and_an_equivalence_has_two_one_sided_tests(make_page, study):
    claims = make_page.claims(study).set_index("compared")
    for claim in make_page.CLAIMS:
        tests, cases = study.tests(claim.own, claim.other, claim.kinds, claim.seeds, states=claim.states)
        if cases and not claim.margin:
            assert claims.loc[claim.compared, "p"] == max(each.p for each in tests)
    values = [1.0, 2.0, 0.5, 1.5]
    sides = ((3, "less"), (-3, "greater"))
    expected = max(scipy.stats.ttest_1samp(values, at, alternative=side).pvalue for at, side in sides)
    assert make_page.estimate(values).p_within(3.0) == pytest.approx(expected)


def test_new_seeds_alone_answer_the_first_claim(make_page, study, monkeypatch):
    first = make_page.CLAIMS[0]
    at = [["Hopper"], ["BC (MLP), 256-256 units"], ["normalised"], ["own"], [""], [str(n) for n in range(10)]]
    index = pandas.MultiIndex.from_product(at, names=[*make_page.CASE, "seed"])
    values = pandas.Series([100.0, -50.0, 30.0, *np.arange(7.0)], index)
    monkeypatch.setattr(study, "difference", lambda *_, **__: values)
    (found, _), cases = study.tests(first.own, first.other, first.kinds, first.seeds)
    assert (found.value, found.seeds, cases) == (3.0, 7, 1)


def test_a_pooled_interval_is_welch_s_where_cases_cancel(make_page, study, monkeypatch):
    up, down = [1.0, 2.0, 4.0], [4.1, 3.0, 1.0]
    at = [["Hopper", "Walker2d"], ["BCQ"], ["raw"], ["own"], [""], [0, 1, 2]]
    cases = pandas.Series(up + down, pandas.MultiIndex.from_product(at, names=[*make_page.CASE, "seed"]))
    monkeypatch.setattr(study, "difference", lambda *_, **__: cases)
    expected = scipy.stats.ttest_ind(up, np.negative(down), equal_var=False)
    low, high = expected.confidence_interval(0.95)
    found = study.pooled(make_page.SNIP, make_page.DENSE)[0]
    assert (found.low, found.high, found.p) == pytest.approx((low / 2, high / 2, expected.pvalue))


def test_a_cell_is_a_plain_t_interval(make_page, study):
    difference = (scores("HalfCheetah", "bc", "snip") - scores("HalfCheetah", "bc", "dense")).dropna()
    low, high = scipy.stats.ttest_1samp(difference, 0).confidence_interval(0.95)
    words = f"**{difference.mean():+.1f} ({low:+.1f} to {high:+.1f})** | ".replace("-", "−")
    assert study.places(make_page.SNIP, make_page.DENSE, ["BC (VAE)"], states="normalised").startswith(words)
    assert str(make_page.estimate([1.0, 2.0])) == "+1.5 (2 seeds)"
    assert make_page.estimate([-3.0, -3.0, -3.0]).cell == "**−3.0 (−3.0 to −3.0)**"


def test_holm_s_correction_counts_the_claims_that_wait_for_agents(make_page):
    # Sorted: 0.005 · 5, 0.01 · 4, 0.03 · 3, 0.04 · 2, which may not fall below the 0.09 before it.
    adjusted = make_page.holm([0.01, 0.04, float("nan"), 0.03, 0.005])
    assert adjusted == pytest.approx([0.04, 0.09, np.nan, 0.09, 0.025], nan_ok=True)


def test_weights_kept_are_those_of_the_masks_and_of_narrow_networks(make_page, study):
    """BC's decoder on HalfCheetah: 17 states and 12 latents, two layers of 750 units, 6 actions."""
    dense = (17 + 12) * 750 + 750 * 750 + 750 * 6
    found = study.points().set_index(["environment", "kind", "pruner", "sparsity"])["weights"]
    own = found.sort_index()["HalfCheetah", "BC (VAE)"]
    assert own["dense", 0.0] == dense
    assert own["snip", 0.95] == pytest.approx(0.05 * dense, abs=1)
    width = min(range(1, 751), key=lambda width: abs(width * (29 + width + 6) - 0.05 * dense))
    assert own["small", 0.95] == width * (29 + width + 6)


def test_the_plan_s_agents_are_counted(make_page, study):
    plan = yaml.safe_load((ROOT / "conf/study.yaml").read_text())
    counted = make_page.progress(study)
    assert list(counted) == [*plan, "all"]
    assert counted["scored-raw-trained-raw"] == (2 * 5 * 2, 20)  # environments, seeds, dense and SNIP
    assert counted["weights-bc-vae"][0] == 3 * 3 * (1 + 2 * 5)
    assert counted["all"][0] < sum(planned for name, (planned, _) in counted.items() if name != "all")
    assert all(0 <= trained <= planned for planned, trained in counted.values())


@pytest.mark.slow
def test_every_part_is_on_a_page_and_every_page_is_up_to_date(make_page, study, tmp_path):
    """If this fails, run `make study-page`."""
    parts = make_page.parts(study)
    written = {path: path.read_text() for path in [*PAGES.glob("*.md"), ROOT / "README.md"]}
    named = {name for text in written.values() for name in re.findall("<!-- ([a-z0-9-]+) -->", text)}
    assert named - {"end"} == set(parts)
    for path, text in written.items():
        assert make_page.fill(text, parts) == text, path
    assert len(written[PAGES / "README.md"].splitlines()) <= 120
    shutil.copy(PAGES / "claims.csv", tmp_path)
    make_page.claims(study).to_csv(tmp_path / "new.csv", index=False, float_format="%.6g")
    assert (tmp_path / "new.csv").read_bytes() == (PAGES / "claims.csv").read_bytes()
