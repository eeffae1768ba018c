"""Adam (Kingma & Ba 2015) with PyTorch's defaults and fused step, without an optimiser's bookkeeping."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim.adam import adam

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of the state of a parameter."""


class Adam:
    """Optimiser of `parameters`, which stay at their addresses in memory, as does all state.

    `torch.optim.Adam(fused=True)` computes the same, but its bookkeeping takes as long as the step of a
    sparse network: IQL, which has three of them, would make a fifth fewer updates (95 % sparsity, a CPU).
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        factor: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """`factor`, a function of the number of steps made, multiplies the learning rate."""
        self.parameters = list(parameters)
        self.learning_rate, self.factor = learning_rate, factor
        self.state = {
            θ: {moment: torch.zeros_like(θ, requires_grad=False) for moment in MOMENTS}
            for θ in self.parameters
        }
        # Numbers of steps made: tensors, as a number would be a constant in a CUDA graph.
        self._steps = [torch.zeros((), device=θ.device) for θ in self.parameters]

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        """Step against each parameter's gradient, of the same shape and contiguous: strides are ignored."""
        rate = self.learning_rate * self.factor(self._steps[0]) if self.factor else self.learning_rate
        means, squares = ([own[moment] for own in self.state.values()] for moment in MOMENTS)
        adam(
            self.parameters,
            gradients,
            means,
            squares,
            max_exp_avg_sqs=[],
            state_steps=self._steps,
            fused=True,
            capturable=self._steps[0].is_cuda,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )

    @property
    def steps(self) -> int:
        """Number of steps made so far; reading it waits for the device."""
        return int(self._steps[0])

    def restore_steps(self, count: int) -> None:
        """Set the number of steps made so far. Moments are restored by writing to the tensors in `state`."""
        for steps in self._steps:
            steps.fill_(count)
