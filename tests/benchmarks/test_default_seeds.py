import pandas

from benchmarks.default_seeds import _configs, _rows


def means(**scores):
    index = pandas.MultiIndex.from_tuples([("Hopper", "bc", pruner) for pruner in scores])
    return pandas.Series(list(scores.values()), index=index)


def test_retentions_of_the_sets_and_how_far_they_differ():
    sets = [means(dense=80.0, snip=60.0, random=20.0), means(dense=90.0, snip=81.0, random=9.0)]
    assert list(_rows(sets)) == [
        ("Hopper, BC, SNIP", "80, 60, 0.75", "90, 81, 0.90", "0.15"),
        ("Hopper, BC, random", "80, 20, 0.25", "90, 9, 0.10", "0.15"),
    ]


def test_sets_share_no_seed():
    sets = [set(config.offline_rl.sweep.seeds) for config in _configs(3, [])]
    assert len(set.union(*sets)) == sum(map(len, sets)) == 3 * len(sets[0])
