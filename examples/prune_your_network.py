# %% [markdown]
# # Prune a network of your own
#
# `singleshot.prune` decides before training which weights of a network are worth training, and
# `singleshot.apply` holds the others at zero under any optimiser. Here a small convolutional network tells
# horizontal from vertical bars; SNIP is compared with as many weights chosen at random.

# %%
import os

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import singleshot

SMALL = os.environ.get("SINGLESHOT_EXAMPLES") == "small"
STEPS = 20 if SMALL else 300
SPARSITIES = [0.9] if SMALL else [0.5, 0.8, 0.9, 0.95, 0.98]


# %% [markdown]
# The data: noisy pictures of 12 × 12 pixels, each with one bar.


# %%
def pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pictures (count, 1, 12, 12), and 1 where the bar is vertical."""
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, 12, 12, generator=draw)
    vertical = torch.randint(2, (count,), generator=draw)
    place = torch.randint(12, (count,), generator=draw)
    for picture, upright, i in zip(noise, vertical, place, strict=True):
        (picture.T if upright else picture)[i] += 1.0
    return noise[:, None], vertical


x, y = pictures(2000, seed=0)
x_test, y_test = pictures(1000, seed=1)

# %% [markdown]
# Any network will do. `loss` is a function from a model to the scalar that training would minimise.


# %%
def network() -> nn.Module:
    """A new network, always with the same initial weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 2)
    )


def loss(model: nn.Module) -> Tensor:
    """Cross-entropy on the first hundred pictures."""
    return nn.functional.cross_entropy(model(x[:100]), y[:100])


# %%
def accuracy(method: str, sparsity: float) -> float:
    """Accuracy after training the weights that a method keeps."""
    model = network()
    masks = singleshot.prune(model, loss, sparsity, method)
    singleshot.apply(model, masks)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for step in range(STEPS):
        batch = torch.arange(step * 50, (step + 1) * 50) % len(x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    kept = sum(int(weight.count_nonzero()) for weight in weights)
    print(f"{method:8} {sparsity:.0%}: {kept:,} of {sum(w.numel() for w in weights):,} weights are not zero")
    return float((model(x_test).argmax(1) == y_test).float().mean())


found = {method: [accuracy(method, s) for s in SPARSITIES] for method in ("snip", "random")}

# %%
for method, values in found.items():
    plt.plot([100 * s for s in SPARSITIES], [100 * value for value in values], "o-", label=method)
plt.xlabel("pruned weights, %")
plt.ylabel("accuracy, %")
plt.legend()
plt.show()
