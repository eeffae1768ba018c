# %% [markdown]
# # Prune a network of your own
#
# A small convolutional network reads digits: whole, pruned before it trains, pruned while it trains, and
# narrow from the start. Each of the three has a twentieth of the weights. A few seconds of one core.

# %%
import tempfile
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import singleshot

SPARSITY, EPOCHS, SEEDS = 0.95, 10, 3

# %% [markdown]
# The data: 1,797 digits of 8 × 8 pixels, which come with scikit-learn. A third is for the test.

# %%
pixels, digits = (torch.from_numpy(each) for each in load_digits(return_X_y=True))
pixels = pixels.float().reshape(-1, 1, 8, 8) / 16
train, test = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0)).split(1200)


# %% [markdown]
# Any network will do. `loss` is a function from a model to the scalar that training would minimise.


# %%
def network(width=1.0):
    """A new network, with so many times the units."""
    a, b, c = (round(width * units) for units in (16, 32, 64))
    return nn.Sequential(
        *(nn.Conv2d(1, a, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(16 * b, c), nn.ReLU(), nn.Linear(c, 10)),
    )


def loss(model, batch=train[:200]):
    """Cross-entropy on a batch."""
    return nn.functional.cross_entropy(model(pixels[batch]), digits[batch])


# %% [markdown]
# The four ways differ in four lines: the network's width, a call of `prune` and `apply` before training, and
# one in each epoch.


# %%
def trained(way):
    """A network that was trained, and made small in this way."""
    model = network((1 - SPARSITY) ** 0.5 if way == "narrow" else 1.0)
    if way == "SNIP":
        singleshot.apply(model, singleshot.prune(model, loss, SPARSITY))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for epoch in range(1, EPOCHS + 1):
        if way == "gradual":  # few weights are left after two thirds of the epochs
            left = max(0.0, 1 - epoch / (EPOCHS * 2 / 3)) ** 3
            singleshot.apply(model, singleshot.prune(model, loss, SPARSITY * (1 - left), "magnitude"))
        for batch in train[torch.randperm(len(train))].split(100):
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()
    return model


# %% [markdown]
# What became of them: means over three trainings.

# %%
print("         weights  accuracy %  packed bytes  training, s  test, ms")
for way in ("dense", "SNIP", "gradual", "narrow"):
    rows = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        began = time.process_time()
        model = trained(way)
        done = time.process_time()
        with torch.no_grad():
            correct = model(pixels[test]).argmax(1) == digits[test]
        tested = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            singleshot.pack(model, f"{folder}/model.packed")
            size = Path(folder, "model.packed").stat().st_size
        weights = sum(int(θ.count_nonzero()) for θ in model.parameters() if θ.ndim > 1)
        rows.append((weights, 100 * correct.float().mean(), size, done - began, 1000 * (tested - done)))
    print("{:7} {:8,.0f} {:11.1f} {:13,.0f} {:12.1f} {:9.1f}".format(way, *torch.tensor(rows).mean(0)))
