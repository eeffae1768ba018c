"""Pruning at initialization: scores of weights, masks from scores, counts of what is left."""
