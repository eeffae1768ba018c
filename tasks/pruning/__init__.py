"""Single-shot pruning: scores, masks, statistics."""
