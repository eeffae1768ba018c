"""Names of networks by how they were pruned."""

DENSE = "dense"
"""The pruner of a network that was never pruned."""


def variant_name(pruner: str, sparsity: float) -> str:
    """How a network was pruned, in a word: `dense`, `snip-0.98`."""
    return DENSE if pruner == DENSE else f"{pruner}-{sparsity:g}"
