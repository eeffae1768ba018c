"""Several styles in one: a network whose pictures lie between those of several networks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from singleshot.errors import UserError
from singleshot.style.transformer_net import TransformerNet


@torch.no_grad()
def blend(networks: Sequence[TransformerNet], shares: Sequence[float]) -> TransformerNet:
    """A network that draws each of `networks`' pictures and mixes them by `shares`, which need not sum to 1.

    What is mixed is the output before the sigmoid: Σ share · logit(picture). The network has the channels of
    all networks side by side, so it runs wherever one runs (tiles, films, other runtimes); with two networks
    of one width, it takes four times the time of one.

    Raises:
        UserError: there is no network, a share is not above 0, or their numbers differ.
    """
    if not networks or len(networks) != len(shares) or not all(0 < share < float("inf") for share in shares):
        raise UserError(f"shares are {list(shares)}; give each style one above 0")
    blended = TransformerNet(sum(network.width for network in networks))
    states = [network.state_dict() for network in networks]
    parts = torch.tensor(shares, dtype=torch.float64) / sum(shares)
    first, last = "stages.0.", f"stages.{len(blended.stages) - 1}."
    for name, values in blended.state_dict().items():
        each = [state[name].cpu() for state in states]
        if name.startswith(last):
            each = [float(part) * value for part, value in zip(parts, each, strict=True)]
            values.copy_(torch.cat(each, dim=1) if values.dim() > 1 else torch.stack(each).sum(dim=0))
        elif name.startswith(first) or values.dim() == 1:
            values.copy_(torch.cat(each))
        else:
            values.copy_(_block_diagonal(each))
    return blended.eval()


def _block_diagonal(kernels: Sequence[Tensor]) -> Tensor:
    """A kernel (ΣO, ΣI, h, w) of kernels (O, I, h, w), none of which reads another's channels."""
    outputs, inputs = (sum(kernel.shape[axis] for kernel in kernels) for axis in (0, 1))
    whole = kernels[0].new_zeros(outputs, inputs, *kernels[0].shape[2:])
    o = i = 0
    for kernel in kernels:
        whole[o : o + len(kernel), i : i + kernel.shape[1]] = kernel
        o, i = o + len(kernel), i + kernel.shape[1]
    return whole
