"""Style networks with pruned weights: masks, before training; compaction, after it."""
