"""Online training of the experts whose rollouts are the default dataset.

Training needs sbx (Stable-Baselines3 in JAX), an optional dependency in requirements-experts.lock. A policy
is taken every `checkpoint_every` steps. The best of these policies in a few deterministic episodes is kept,
and then measured in other episodes. An interrupted run resumes from its last checkpoint, but not bit for bit,
because its environments start new episodes.
"""

import dataclasses
import importlib
import itertools
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from singleshot.errors import UserError
from singleshot.rl.environments import LOCOMOTION
from singleshot.rl.experts.collect import LOCKSTEP, roll_out
from singleshot.rl.experts.config import HIDDEN, ExpertConfig
from singleshot.rl.experts.policy import (
    ACTION_NOISE,
    Expert,
    ExpertCard,
    Returns,
    load_expert,
    save_expert,
)

SELECTION_EPISODES, SELECTION_SEED = 5, 1
CARD_EPISODES, CARD_SEED = 30, 2
BEST = "best.safetensors"
"""File name of the best policy of a run so far, in the run's directory."""
HYPER_PARAMETERS = {
    "TQC": ("batch_size", "learning_rate", "steps_per_update", "initial_steps", "critic_warmup"),
    "TD3": ("batch_size", "learning_rate", "steps_per_update", "initial_steps", "critic_warmup"),
    "PPO": ("batch_size", "learning_rate", "initial_steps"),
}
"""Settings of the configuration that each algorithm uses."""


def train_expert(config: ExpertConfig) -> Expert:
    """Train, choose the best checkpoint, measure it over 30 other episodes, and write it with its card.

    Raises:
        UserError: sbx is missing, there is no run to resume, a run would be overwritten, or the expert to
            start from can't be this algorithm's actor.
    """
    learner = _learner(config)
    config.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    if config.resume:
        started_from = _last_card(config).started_from
        learner.load(config.checkpoint_dir)
    else:
        _check_unused(config.checkpoint_dir)
        expert = _load_start(config.start_from) if config.start_from else None
        started_from = _describe(expert.card) if expert else None
        if expert:
            learner.start_from(expert, config)
    with tqdm(
        total=config.steps, initial=learner.model.num_timesteps, unit="step", desc=config.environment
    ) as bar:
        checkpoints = _Checkpoints(config, learner, bar, started_from)
        remaining = config.steps - learner.model.num_timesteps
        learner.model.learn(remaining, callback=checkpoints, reset_num_timesteps=False)
        checkpoints.write()
    expert = measure(load_expert(config.checkpoint_dir / BEST), CARD_EPISODES, CARD_SEED)
    save_expert(expert, config.output)
    return expert


def measure(expert: Expert, episodes: int, seed: int) -> Expert:
    """`expert` with a card that states its returns over `episodes`, with and without noise."""
    deterministic = returns(expert, episodes, 0.0, seed)
    noisy = returns(expert, episodes, ACTION_NOISE, seed)
    card = dataclasses.replace(expert.card, episodes=episodes, deterministic=deterministic, noisy=noisy)
    return dataclasses.replace(expert, card=card)


def returns(expert: Expert, episodes: int, action_noise: float, seed: int) -> Returns:
    """Undiscounted returns of `episodes` whole episodes in the expert's environment."""
    environment = LOCOMOTION[expert.card.environment]
    rollouts = roll_out(expert.act, environment, action_noise, seed, width=min(LOCKSTEP, episodes))
    totals = np.array([episode.rewards.sum() for episode in itertools.islice(rollouts, episodes)])
    score = environment.score(float(totals.mean()))
    return Returns(round(float(totals.mean()), 1), round(float(totals.std()), 1), round(score, 2))


def _learner(config: ExpertConfig) -> Any:
    """A learner of `algorithms`, with random weights."""
    try:
        algorithms = importlib.import_module("singleshot.rl.experts.algorithms")
    except ImportError as error:
        raise UserError(
            f"training an expert needs sbx ({error}); "
            "`python -m singleshot.io.uv pip install -r requirements-experts.lock`"
        ) from error
    return algorithms.make_learner(config)


def _load_start(path: Path) -> Expert:
    """The expert at `path`, which must have the layers of the actors in `algorithms`."""
    expert = load_expert(path)
    hidden = [len(bias) for bias in expert.biases[:-1]]
    if hidden != HIDDEN:
        raise UserError(f"{path}: hidden layers {hidden}; training starts only from {HIDDEN}")
    return expert


def _check_unused(directory: Path) -> None:
    if (directory / BEST).exists():
        raise UserError(
            f"{directory}: holds a run already; go on with it (--resume), or give another directory"
        )


def _last_card(config: ExpertConfig) -> ExpertCard:
    """The card of the run to resume, which must have been started with this configuration."""
    directory = config.checkpoint_dir
    if not (directory / BEST).exists():
        raise UserError(f"{directory}: holds no checkpoint; start without --resume")
    last = load_expert(directory / BEST).card
    given = _card(config, last.steps, last.started_from)
    for name in ("environment", "algorithm", "seed", "hyper_parameters"):
        if getattr(last, name) != getattr(given, name):
            raise UserError(
                f"{directory}: that run's {name} was {getattr(last, name)}, not {getattr(given, name)}; "
                "resume with the same, or start in another directory"
            )
    return last


@dataclass
class _Checkpoints:
    """A callback after every step of the environments, which saves the run's state and its best policy."""

    config: ExpertConfig
    learner: Any
    bar: tqdm
    started_from: str | None

    def __call__(self, _locals: dict, _globals: dict) -> bool:
        before, now = self.bar.n, self.learner.model.num_timesteps
        self.bar.update(now - before)
        if before // self.config.checkpoint_every < now // self.config.checkpoint_every:
            self.write()
        return True

    def write(self) -> None:
        directory = self.config.checkpoint_dir
        card = _card(self.config, self.learner.model.num_timesteps, self.started_from)
        weights, biases = zip(*self.learner.layers(), strict=True)
        expert = measure(Expert(weights, biases, card), SELECTION_EPISODES, SELECTION_SEED)
        self.learner.save(directory)
        best = load_expert(directory / BEST) if (directory / BEST).exists() else None
        if best is None or best.card.deterministic.mean < expert.card.deterministic.mean:
            save_expert(expert, directory / BEST)
        self.bar.set_postfix_str(f"D4RL score {expert.card.deterministic.d4rl_score:.1f}")


def _card(config: ExpertConfig, steps: int, started_from: str | None) -> ExpertCard:
    """A card whose measurements are still missing."""
    return ExpertCard(
        environment=config.environment,
        environment_id=str(LOCOMOTION[config.environment].id),
        algorithm=config.algorithm,
        steps=steps,
        seed=config.seed,
        hyper_parameters={name: getattr(config, name) for name in HYPER_PARAMETERS[config.algorithm]},
        episodes=0,
        deterministic=Returns(0.0, 0.0, 0.0),
        noisy=Returns(0.0, 0.0, 0.0),
        versions={name: version(name) for name in ("sbx-rl", "gymnasium", "mujoco")},
        started_from=started_from,
    )


def _describe(card: ExpertCard) -> str:
    score = card.deterministic.d4rl_score
    return f"{card.algorithm}, {card.steps} steps, seed {card.seed}, D4RL score {score}"
