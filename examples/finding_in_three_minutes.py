# %% [markdown]
# # What decides whether a pruned agent can walk
#
# Behaviour cloning of HalfCheetah with 95 % of the weights pruned before training (SNIP), on raw and on
# normalised states. The 17 coordinates of a state differ in scale by a factor of 250: on raw states, SNIP
# keeps the weights of the large ones, so that agents cannot see the others. About three minutes on a laptop.

# %%
import itertools
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import singleshot
from singleshot.rl.environments import LOCOMOTION
from singleshot.rl.experts.collect import roll_out
from singleshot.rl.experts.policy import load_expert

SMALL = os.environ.get("SINGLESHOT_EXAMPLES") == "small"
EPISODES, UPDATES, SCORED = (1, 20, 1) if SMALL else (20, 2000, 5)
HALF_CHEETAH = LOCOMOTION["HalfCheetah"]

# %% [markdown]
# The data: episodes of the expert that comes with this repository, with some noise on its actions.

# %%
here = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()  # a notebook has no file
expert = load_expert(here.parent / "experts" / "halfcheetah.safetensors")
rollouts = roll_out(expert.act, HALF_CHEETAH, action_noise=0.1, seed=0, width=EPISODES)
episodes = list(itertools.islice(rollouts, EPISODES))
data = singleshot.rl.Dataset(
    np.concatenate([episode.observations[:-1] for episode in episodes]),
    np.concatenate([episode.actions for episode in episodes]),
    np.concatenate([episode.rewards for episode in episodes]),
    np.concatenate([episode.observations[1:] for episode in episodes]),
    np.zeros(sum(len(episode) for episode in episodes)),  # HalfCheetah never ends an episode
)
print(data)

# %% [markdown]
# Four agents: dense and pruned, on raw and on normalised states. D4RL's score is 0 for a random policy and
# 100 for an expert.

# %%
scores, losses = {}, {}
for states in ("raw", "normalised"):
    for kind in ("dense", "pruned"):
        agent = singleshot.rl.BC(
            data, learning_rate=3e-3, learning_rate_decay=True, normalize_states=states == "normalised"
        )
        if kind == "pruned":
            agent.prune("snip", 0.95)
        agent.fit(UPDATES)
        returns = agent.evaluate(HALF_CHEETAH, episodes=SCORED)
        scores[kind, states] = HALF_CHEETAH.score(float(returns.mean()))
        losses[kind, states] = agent.losses
        print(f"{kind}, {states} states: score {scores[kind, states]:.0f}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
for (kind, states), recorded in losses.items():
    style = "-" if states == "normalised" else ":"
    left.plot(recorded["update"], recorded["reconstruction_loss"], style, label=f"{kind}, {states}")
left.set(xlabel="update", ylabel="reconstruction loss", yscale="log")
left.legend()
right.bar([f"{kind}\n{states}" for kind, states in scores], list(scores.values()))
right.set(ylabel="D4RL score")
figure.tight_layout()
plt.show()
