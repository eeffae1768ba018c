"""How the networks of pruned agents compute: in full with zeros, or with the kept weights alone.

This is chosen here, below the equations of the algorithms.
"""

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from singleshot.errors import UserError
from singleshot.pruning.pruner import of_layers
from singleshot.rl.networks import Architecture, DenseNetwork, LayerTensors, SparseNetwork

if TYPE_CHECKING:
    from singleshot.sparse.perceptron import SparsePerceptron

SPARSE_DENSITY = 0.4
"""A network that keeps at most this fraction of its weights trains faster sparsely than in full, as measured
with `python -m benchmarks.offline_rl_updates`. At one half, both take equally long, with AVX-512 and AVX2."""
Execution = Literal["auto", "masked", "sparse"]
"""How pruned networks compute: `masked`, in full with zeros where weights are pruned; `sparse`, with the kept
weights alone; `auto`, sparsely where that is faster, which requires a single agent on a CPU."""
LossTerms = Callable[..., Mapping[str, Tensor]]


def sparse_perceptrons(
    architectures: Mapping[str, Architecture],
    masks: Mapping[str, LayerTensors] | None,
    device: str,
    execution: Execution,
) -> dict[str, dict[str, "SparsePerceptron"]]:
    """The perceptrons of the networks that compute sparsely, by network and first layer.

    Raises:
        UserError: execution is `sparse`, but a stack with pruned agents has several agents or is on a GPU.
    """
    if masks is None or execution == "masked":
        return {}
    agents = max(len(mask) for layers in masks.values() for mask in layers.values())
    lone = device == "cpu" and agents == 1
    if execution == "sparse" and not lone:
        raise UserError(
            "execution is sparse, which is for one agent at a time on a CPU; set offline_rl.execution to auto"
        )
    if not lone:
        return {}
    # Imported here, as Numba takes a quarter of a second, and most code that imports agents trains none.
    from singleshot.sparse.perceptron import SparsePerceptron

    densest = 1.0 if execution == "sparse" else SPARSE_DENSITY
    own = of_layers(lambda mask: mask[0].bool(), masks)
    density = {
        name: sum(int(mask.sum()) for mask in layers.values()) / sum(mask.numel() for mask in layers.values())
        for name, layers in own.items()
    }
    return {
        name: {
            (*hidden, *heads)[0]: SparsePerceptron.of(hidden, heads, own[name])
            for hidden, heads in architecture.perceptrons
        }
        for name, architecture in architectures.items()
        if density[name] <= densest
    }


def or_sparsely(differentiated: LossTerms) -> Callable[[LossTerms], LossTerms]:
    """Have `differentiated`, a function of the same arguments, compute a loss whose networks are all sparse.

    It returns the terms together with their gradient. Autograd would take longer for the many small
    operations of a loss than the kernels of sparse networks take: BCQ at 95 % makes 1.3 times as many
    updates a second this way.
    """

    def with_both(loss: LossTerms) -> LossTerms:
        @functools.wraps(loss)
        def choose(*arguments: Any) -> Mapping[str, Tensor]:
            networks = [each for each in arguments if isinstance(each, DenseNetwork | SparseNetwork)]
            sparse = all(isinstance(network, SparseNetwork) for network in networks)
            return (differentiated if sparse else loss)(*arguments)

        return choose

    return with_both
