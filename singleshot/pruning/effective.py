"""Effective sparsity: the kept weights of an MLP that lie on a path from an input to an output."""

from collections.abc import Sequence

from torch import Tensor


def on_paths(masks: Sequence[Tensor]) -> list[Tensor]:
    """The weights of each mask that lie on a path of kept weights from an input to an output.

    Only these take part in the function of the MLP: of the others, no input reaches them or they reach no
    output. Sparsity without them is *effective sparsity* (Vysogorets and Kempe 2023, arXiv:2107.02306).

    Args:
        masks: bool (out, in) of an MLP's layers in order, true where a weight is kept. Heads that read the
            same layer are one mask, concatenated.

    Returns:
        bool (out, in) for each layer.
    """
    inputs, outputs = masks[0].shape[1], len(masks[-1])
    reached = [masks[0].new_ones(inputs)]
    for mask in masks:
        reached.append((mask & reached[-1]).any(dim=1))
    used = masks[-1].new_ones(outputs)
    found = []
    for mask, units in zip(reversed(masks), reversed(reached[:-1]), strict=True):
        found.append(mask & units & used[:, None])
        used = (mask & used[:, None]).any(dim=0)
    return found[::-1]
