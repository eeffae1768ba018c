# %% [markdown]
# # How to make a policy of few weights
#
# Behaviour cloning of HalfCheetah by networks with 5 % of 71,000 weights: pruned before training (SNIP),
# pruned while they train (gradually), or narrow from the start, beside the whole network. Two minutes of one
# core, after `pip install '.[rl,style]'`.

# %%
import itertools
import os
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import singleshot
from singleshot.rl.environments import LOCOMOTION
from singleshot.rl.experts.collect import roll_out
from singleshot.rl.experts.policy import load_expert

SMALL = os.environ.get("SINGLESHOT_EXAMPLES") == "small"
EPISODES, UPDATES, SCORED = (1, 200, 1) if SMALL else (50, 20_000, 10)
HALF_CHEETAH = LOCOMOTION["HalfCheetah"]

# %% [markdown]
# The data: episodes of the expert that comes with this repository, with some noise on its actions.
# `singleshot.rl.Dataset.d4rl(path)` and `.minari(name)` read others.

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
# Four agents. D4RL's score is 0 for a random policy and 100 for an expert.

# %%
WAYS = {"dense": None, "narrow": "small", "SNIP": "snip", "gradual": "gradual"}
scores, losses = {}, {}
print(f"{'':8} {'weights':>8} {'D4RL score':>10} {'lowest, highest':>16} {'CPU s':>8}")
for way, method in WAYS.items():
    agent = singleshot.rl.BC(data, actor="mlp", hidden=(256, 256), normalize_states=True)
    if method:
        agent.prune(method, 0.95)
    began = time.process_time()
    agent.fit(UPDATES, progress=False)
    seconds = time.process_time() - began
    weights = sum(layer.weights_kept for layer in agent.layers)
    scores[way] = HALF_CHEETAH.score(agent.evaluate(HALF_CHEETAH, episodes=SCORED))
    losses[way] = agent.losses
    low, mean, high = scores[way].min(), scores[way].mean(), scores[way].max()
    print(f"{way:8} {weights:8,} {mean:10.0f} {low:9.0f}, {high:5.0f} {seconds:8.0f}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
for way, recorded in losses.items():
    left.plot(recorded["update"], recorded["cloning_loss"], label=way)
left.set(xlabel="update", ylabel="loss", yscale="log")
left.legend()
right.bar(list(scores), [each.mean() for each in scores.values()])
right.set(ylabel="D4RL score")
figure.tight_layout()
plt.show()
