import pytest
import torch

from singleshot.rl.training.stack import flushed_denormals


@pytest.mark.parametrize("before", [False, True])
def test_denormals_are_treated_as_before_again(before):
    torch.set_flush_denormal(before)
    try:
        with flushed_denormals():
            assert torch.tensor(1e-39).mul(1) == 0
        assert (torch.tensor(1e-39).mul(1) == 0) == before
    finally:
        torch.set_flush_denormal(False)
