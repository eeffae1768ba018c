"""Adam (Kingma & Ba 2015) with PyTorch's defaults and its fused step, but without its bookkeeping."""

from collections.abc import Iterable

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of the state of a parameter, besides the number of steps."""


class Adam:
    """Optimiser of `parameters`, which stay at their addresses in memory, as does all state.

    `torch.optim.Adam(fused=True)` computes the same, but spends 55 µs per step on bookkeeping, more than the
    step of a sparse network takes (35 µs; BCQ, SNIP at 95 %).
    """

    def __init__(
        self, parameters: Iterable[Tensor], learning_rate: float, decay_steps: int | None = None
    ) -> None:
        """If `decay_steps` is given, the learning rate falls linearly, to 0 after that many steps."""
        self.parameters = list(parameters)
        self.learning_rate, self.decay_steps = learning_rate, decay_steps
        self.state = {
            parameter: {
                "step": torch.zeros((), device=parameter.device),
                **{moment: torch.zeros_like(parameter, requires_grad=False) for moment in MOMENTS},
            }
            for parameter in self.parameters
        }
        self._steps, self._means, self._squares = (
            [own[kind] for own in self.state.values()] for kind in ("step", *MOMENTS)
        )

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        """Step against each parameter's gradient, of the same shape and contiguous: strides are ignored."""
        learning_rate = self._learning_rate()
        torch._foreach_add_(self._steps, 1)
        torch._fused_adam_(
            self.parameters,
            gradients,
            self._means,
            self._squares,
            [],
            self._steps,
            lr=learning_rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def _learning_rate(self) -> float | Tensor:
        if self.decay_steps is None:
            return self.learning_rate
        # A tensor, from the step count on the device: in a CUDA graph, a Python number would never change.
        return self.learning_rate * (1 - self._steps[0] / self.decay_steps)

    def restore_steps(self, count: int) -> None:
        """Set the number of steps made so far. Moments are restored by writing to the tensors in `state`."""
        for step in self._steps:
            step.fill_(count)
