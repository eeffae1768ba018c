from tasks.pruning.variant import variant_name


def test_a_name_is_the_pruner_and_the_sparsity_in_short():
    assert variant_name("dense", 0.0) == "dense"
    assert variant_name("snip", 0.9) == "snip-0.9"
    assert variant_name("grasp", 0.95) == "grasp-0.95"
