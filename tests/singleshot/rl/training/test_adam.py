import pytest
import torch

from singleshot.rl.training.learner import Adam

STEPS = 20


def falling(steps):
    return 1 - steps / STEPS


@pytest.mark.parametrize("factor", [None, falling])
def test_steps_are_those_of_pytorch(factor):
    generator = torch.Generator().manual_seed(0)
    ours = [torch.randn(1, 4, 3, generator=generator), torch.randn(1, 3, generator=generator)]
    theirs = [parameter.clone().requires_grad_() for parameter in ours]
    adam = Adam(ours, 0.01, factor)
    reference = torch.optim.Adam(theirs, 0.01, fused=True)
    # The factor of the learning rate: from 1 to 0 in so many steps, or 1 all along.
    schedule = torch.optim.lr_scheduler.LinearLR(reference, 1.0, 0.0 if factor else 1.0, STEPS)
    for _ in range(STEPS):
        gradients = [torch.randn(parameter.shape, generator=generator) for parameter in ours]
        adam.step([gradient.clone() for gradient in gradients])
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient
        reference.step()
        schedule.step()
        for own, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(own, other.detach(), rtol=1e-5, atol=1e-7)


def test_a_decayed_learning_rate_goes_on_where_it_was():
    def after(interruptions):
        generator = torch.Generator().manual_seed(0)
        parameter = torch.randn(1, 5, generator=generator)
        adam = Adam([parameter], 0.01, falling)
        for step in range(STEPS):
            if step in interruptions:
                moments = adam.state
                adam = Adam([parameter], 0.01, falling)
                adam.restore_steps(step)
                for moment in ("exp_avg", "exp_avg_sq"):
                    adam.state[moment][parameter].copy_(moments[moment][parameter])
            adam.step([torch.randn(1, 5, generator=generator)])
        return parameter

    assert torch.equal(after(interruptions=()), after(interruptions=(7, 13)))
