"""Pruning at initialization: scores of weights, masks from scores, counts of the weights that are left."""
