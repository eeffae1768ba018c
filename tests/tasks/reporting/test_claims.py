"""Verdicts on the paper's claims, of runs by hand."""

import math

import pandas
import pytest

from tasks.reporting import claims, results
from tasks.reporting.claims import FAILS, HOLDS, OPEN, PARTLY, Difference, difference
from tasks.reporting.results import Results


def agents(*scores):
    """Agents of two environments, each seed's score and two points more."""
    rows = [
        (environment, "bc", seed, score + more)
        for more, environment in ((0, "Hopper"), (2, "Walker2d"))
        for seed, score in enumerate(scores)
    ]
    return pandas.DataFrame(rows, columns=["environment", "algorithm", "seed", "d4rl_score"])


def test_agents_are_compared_seed_by_seed():
    found = difference(agents(51, 53, 55), agents(50, 51, 52), 0.95)
    assert (found.points, found.seeds) == (2, 3)
    half = 4.302653 / math.sqrt(3)  # Student's t of 2 degrees of freedom at 97.5 %; a standard deviation of 1
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), rel=1e-6)
    assert str(found) == "+2.0 (−0.48 to +4.5)"
    assert found.interval("95 %") == "95 % interval: −0.48 to +4.5, 3 seeds"


def test_without_three_seeds_nothing_is_decided():
    found = difference(agents(10, 20), agents(50, 51), 0.95)
    assert (found.points, found.kept, found.more) == (-35.5, OPEN, OPEN)
    assert (str(found), found.interval("95 %")) == ("−36 (2 seeds)", "2 seeds")
    assert str(difference(agents(), agents(50), 0.95)) == "not run"


@pytest.mark.parametrize(
    ("low", "high", "kept", "more"),
    [
        (-4, -1, HOLDS, FAILS), (-20, -7, FAILS, FAILS), (-42, 5, OPEN, OPEN), (-9, 30, HOLDS, OPEN),
        (1, 2, HOLDS, HOLDS),
    ],
)  # fmt: skip
def test_a_verdict_goes_no_further_than_the_interval(low, high, kept, more):
    found = Difference((low + high) / 2, low, high, 3)
    assert (found.kept, found.more) == (kept, more)


def test_each_claim_of_the_paper_has_a_row(tmp_path):
    """Scores of 80, less 2 to 4 by SNIP and 29 to 31 by GraSP; other weights of three layers each."""
    left = {"dense": (80, 80, 80), "snip": (78, 77, 76), "grasp": (51, 50, 49)}
    scores = [
        (environment, algorithm, pruner, 0.95 * (pruner != "dense"), seed, 10, left[pruner][seed])
        for environment, algorithm in (("HalfCheetah", "bc"), ("Hopper", "bcq"), ("Hopper", "iql"))
        for pruner in left
        for seed in range(3)
    ]
    columns = "environment algorithm pruner sparsity seed update d4rl_score"
    kept = {"snip": (9, 10, 20), "grasp": (30, 5, 20)}
    layers = [
        ("Hopper", "bc", "actor", "actor", layer, pruner, 0.95, 0, 100, kept[pruner][layer])
        for pruner in kept
        for layer in range(3)
    ]
    of_layers = "environment algorithm network part layer pruner sparsity seed weights_total weights_kept"
    files = {results.SCORES: (columns, scores), results.LAYERS: (of_layers, layers)}
    for source, (names, rows) in files.items():
        path = tmp_path / source.path.rpartition("/")[2]
        pandas.DataFrame(rows, columns=names.split()).to_csv(path, index=False)
    found = Results({source.path: tmp_path / source.path.rpartition("/")[2] for source in files})
    rows = {row["the paper says"].replace("\u00a0", " "): row for row in claims.table(found, 0.95)}
    verdicts = {says: row["verdict"] for says, row in rows.items()}
    assert verdicts == {
        "BC on HalfCheetah keeps its score, 95 % pruned by SNIP (Figure 1)": HOLDS,
        "BC on HalfCheetah keeps its score, 95 % pruned by GraSP (Figure 2)": FAILS,
        "BCQ on Hopper loses score, 95 % pruned by SNIP (Figure 1)": FAILS,
        "BCQ on Hopper loses score, 95 % pruned by GraSP (Figure 2)": HOLDS,
        "other algorithms keep their score (expected): IQL on Hopper, 95 % pruned by SNIP": HOLDS,
        "other algorithms keep their score (expected): IQL on Hopper, 95 % pruned by GraSP": FAILS,
        "scores are kept with less pruned, too, from 10 % on": OPEN,
        "last layers keep the largest share (Figure 3)": PARTLY,
        "GraSP keeps more of the last layers than SNIP (Figure 3)": FAILS,
        "networks take 4 times fewer bytes (Table 1, Figure 4)": OPEN,
        "pruned networks act faster, with software for it": OPEN,
        "larger batches for pruning, or more rounds of it, change nothing": OPEN,
    }
    first = rows["BC on HalfCheetah keeps its score, 95 % pruned by SNIP (Figure 1)"]
    assert first["here"] == "−3.0 (−5.5 to −0.52)"
    largest = rows["last layers keep the largest share (Figure 3)"]
    assert largest["here"] == "in 1 of 2 networks"
