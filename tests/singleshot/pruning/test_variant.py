from singleshot.pruning.variant import percentage, variant_name


def test_a_name_is_the_pruner_and_the_sparsity_in_short():
    assert variant_name("dense", 0.0) == "dense"
    assert variant_name("snip", 0.9) == "snip-0.9"
    assert variant_name("grasp", 0.95) == "grasp-0.95"


def test_sparsities_that_differ_are_written_differently():
    assert [percentage(sparsity) for sparsity in (0.5, 0.58, 0.95, 0.98, 0.985, 0.995, 0.9999)] == [
        "50", "58", "95", "98", "98.5", "99.5", "99.99",
    ]  # fmt: skip
