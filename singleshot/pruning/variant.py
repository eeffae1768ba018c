"""Names that say how a network was pruned."""

DENSE = "dense"
"""Pruner name of a network that was never pruned."""
SMALL = "small"
"""Pruner name of dense agents with narrow hidden layers, which have as many weights as pruned ones."""


def variant_name(pruner: str, sparsity: float) -> str:
    """Short name that says how a network was pruned: `dense`, `snip-0.98`."""
    return DENSE if pruner == DENSE else f"{pruner}-{sparsity:g}"


def percentage(sparsity: float) -> str:
    """Write a sparsity in percent, with up to six digits: 0.98 as `98`, 0.995 as `99.5`."""
    return f"{100 * sparsity:.6g}"
