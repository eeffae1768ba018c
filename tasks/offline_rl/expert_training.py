"""Online training of the experts whose rollouts are the default dataset.

By sbx (Stable-Baselines3 in JAX), which is optional: `pip install -r requirements-experts.lock`. The policy
kept is the best of those at every `checkpoint_every` steps, chosen by a few deterministic episodes and then
measured on others. An interrupted run goes on from its last checkpoint; not bit for bit, for its environments
start new episodes.
"""

import dataclasses
import importlib
import itertools
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from tasks.errors import UserError
from tasks.offline_rl.collect import collect
from tasks.offline_rl.environments import (
    TASKS,
    TIME_LIMIT,
    MujocoTask,
    TaskName,
    d4rl_score,
    make_environment,
)
from tasks.offline_rl.experts import ACTION_NOISE, Expert, ExpertCard, Returns, load_expert, save_expert

HIDDEN = [256, 256]
"""Hidden layers of actor and critics."""
ENVIRONMENTS = 8
"""Environments stepped in lockstep."""
GRADIENT_STEPS = 32
"""Updates between two phases of collection, compiled as one loop: 235/s of TQC at batch 128 on one core."""
SELECTION_EPISODES, SELECTION_SEED = 5, 1
CARD_EPISODES, CARD_SEED = 30, 2
MODEL, REPLAY_BUFFER, BEST = "model.zip", "replay_buffer.pkl", "best.safetensors"
"""What a run keeps in its directory."""
HYPER_PARAMETERS = ("batch_size", "learning_rate", "steps_per_update", "initial_steps", "critic_warmup")


@dataclass(frozen=True)
class ExpertConfig:
    """How to train an expert. The defaults are what the shipped HalfCheetah was trained with."""

    task: TaskName
    output: Path
    """The safetensors file to write."""
    checkpoint_dir: Path
    """Where the run keeps its state, and goes on from."""
    steps: int = 2_000_000
    """Environment steps in all, those that fill the replay buffer included."""
    seed: int = 0
    algorithm: Literal["TQC", "TD3"] = "TQC"
    """TQC: Kuznetsov et al. 2020. TD3: Fujimoto et al. 2018."""
    start_from: Path | None = None
    """An expert to improve; else learning starts from random actions."""
    resume: bool = False
    """Go on from the last checkpoint in `checkpoint_dir`."""
    steps_per_update: int = 2
    """Environment steps per gradient update. On a CPU a step costs a twentieth of an update."""
    batch_size: int = 128
    learning_rate: float = 5e-4
    """Of the actor; TQC's decays linearly to a tenth over the run."""
    initial_steps: int = 10_000
    """Steps before the first update: random ones, or of the expert it starts from."""
    critic_warmup: int = 20_000
    """Updates of the critics alone before an expert it starts from may change."""
    checkpoint_every: int = 50_000
    """Environment steps between two checkpoints."""


def train_expert(config: ExpertConfig) -> Expert:
    """Train, choose the best checkpoint, measure it over 30 other episodes, write it with its card.

    Raises:
        UserError: sbx is missing, there is nothing to resume or something that would be overwritten, or the
            expert to start from can't be this algorithm's actor.
    """
    sbx = _import_sbx()
    if config.resume:
        started_from = _last_card(config).started_from
        model = _resume(sbx, config)
    else:
        expert = _load_start(config.start_from) if config.start_from else None
        started_from = _describe(expert.card) if expert else None
        model = _start(sbx, config, expert)
    with tqdm(total=config.steps, initial=model.num_timesteps, unit="step", desc=config.task) as bar:
        checkpoints = _Checkpoints(config, model, bar, started_from)
        model.learn(config.steps - model.num_timesteps, callback=checkpoints, reset_num_timesteps=False)
        checkpoints.write()
    expert = measure(load_expert(config.checkpoint_dir / BEST), CARD_EPISODES, CARD_SEED)
    save_expert(expert, config.output)
    return expert


def measure(expert: Expert, episodes: int, seed: int) -> Expert:
    """`expert` with a card that states its returns over `episodes`, without noise and with it."""
    deterministic = returns(expert, episodes, 0.0, seed)
    noisy = returns(expert, episodes, ACTION_NOISE, seed)
    card = dataclasses.replace(expert.card, episodes=episodes, deterministic=deterministic, noisy=noisy)
    return dataclasses.replace(expert, card=card)


def returns(expert: Expert, episodes: int, action_noise: float, seed: int) -> Returns:
    """Undiscounted returns of `episodes` whole episodes in the -v5 environment of the expert's task."""
    task = TASKS[expert.card.task]
    rollouts = collect(expert.act, task, "v5", episodes * TIME_LIMIT, action_noise, seed)
    totals = np.array([episode.rewards.sum() for episode in itertools.islice(rollouts, episodes)])
    score = d4rl_score(task, float(totals.mean()))
    return Returns(round(float(totals.mean()), 1), round(float(totals.std()), 1), round(score, 2))


def _import_sbx() -> Any:
    try:
        return importlib.import_module("sbx")
    except ImportError as error:
        raise UserError(
            f"training an expert needs sbx ({error}); `pip install -r requirements-experts.lock`"
        ) from error


def _environments(task: MujocoTask) -> Any:
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv([lambda: make_environment(task, "v5")] * ENVIRONMENTS)


def _start(sbx: Any, config: ExpertConfig, expert: Expert | None) -> Any:
    """A new model; if it starts from an expert, with that as its actor and critics fitted to its rollouts."""
    directory = config.checkpoint_dir
    if (directory / MODEL).exists():
        raise UserError(
            f"{directory}: holds a run already; go on with it (--resume), or give another directory"
        )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / BEST).unlink(missing_ok=True)
    options: dict[str, Any] = {
        "policy": "MlpPolicy",
        "env": _environments(TASKS[config.task]),
        "policy_kwargs": {"net_arch": HIDDEN},
        "batch_size": config.batch_size,
        "learning_starts": 0 if expert else config.initial_steps,
        "train_freq": config.steps_per_update * GRADIENT_STEPS // ENVIRONMENTS,
        "gradient_steps": GRADIENT_STEPS,
        "policy_delay": 2,
        "seed": config.seed,
    }
    if config.algorithm == "TQC":
        model = sbx.TQC(
            learning_rate=lambda remaining: config.learning_rate * (0.1 + 0.9 * remaining),
            ent_coef="auto_0.05" if expert else "auto",
            **options,
        )
    else:
        from stable_baselines3.common.noise import NormalActionNoise

        size = TASKS[config.task].action_size
        noise = NormalActionNoise(np.zeros(size), np.full(size, ACTION_NOISE))
        model = sbx.TD3(learning_rate=config.learning_rate, action_noise=noise, **options)
    if expert:
        _copy_actor(expert, model)
        _fit_critics(model, config)
    return model


def _load_start(path: Path) -> Expert:
    """The expert at `path`, if it has the form of sbx's actors here."""
    expert = load_expert(path)
    hidden = [len(bias) for bias in expert.biases[:-1]]
    raw = not expert.observation_mean.any() and bool((expert.observation_std == 1).all())
    if (hidden, expert.activation, expert.output, raw) != (HIDDEN, "relu", "tanh", True):
        raise UserError(
            f"{path}: hidden layers {hidden}, {expert.activation}, output {expert.output}, observations "
            f"{'raw' if raw else 'normalised'}; training starts only from {HIDDEN}, relu, tanh and raw ones"
        )
    return expert


def _copy_actor(expert: Expert, model: Any) -> None:
    """Give the actor, and its target if it has one, the expert's layers; a Gaussian one gets σ = 1/e."""
    state = model.policy.actor_state
    layers = dict(state.params["params"])
    for i, (weight, bias) in enumerate(zip(expert.weights, expert.biases, strict=True)):
        layers[f"Dense_{i}"] = {"kernel": weight, "bias": bias}
    head = f"Dense_{len(expert.weights)}"
    if head in layers:
        layers[head] = {"kernel": 0 * layers[head]["kernel"], "bias": 0 * layers[head]["bias"] - 1}
    targets = {"target_params": {"params": layers}} if hasattr(state, "target_params") else {}
    model.policy.actor_state = state.replace(params={"params": layers}, **targets)


def _fit_critics(model: Any, config: ExpertConfig) -> None:
    """Fill the replay buffer with the actor's exploration and train the critics alone on that."""
    model.gradient_steps = 0
    model.learn(config.steps, callback=lambda *_: model.num_timesteps < config.initial_steps)
    actor, entropy = model.policy.actor_state, getattr(model, "ent_coef_state", None)
    for _ in range(config.critic_warmup // GRADIENT_STEPS):
        model.train(GRADIENT_STEPS, config.batch_size)
        model.policy.actor_state = actor
        if entropy is not None:
            model.ent_coef_state = entropy
    model.gradient_steps = GRADIENT_STEPS


def _last_card(config: ExpertConfig) -> ExpertCard:
    """The card of the run to go on with, if that was started with this configuration."""
    directory = config.checkpoint_dir
    if not (directory / MODEL).exists():
        raise UserError(f"{directory}: holds no checkpoint; start without --resume")
    last = load_expert(directory / BEST).card
    given = _card(config, last.steps, last.started_from)
    for name in ("task", "algorithm", "seed", "hyper_parameters"):
        if getattr(last, name) != getattr(given, name):
            raise UserError(
                f"{directory}: that run's {name} was {getattr(last, name)}, not {getattr(given, name)}; "
                "resume with the same, or start in another directory"
            )
    return last


def _resume(sbx: Any, config: ExpertConfig) -> Any:
    """The model of the last checkpoint, with its replay buffer."""
    directory = config.checkpoint_dir
    model = getattr(sbx, config.algorithm).load(directory / MODEL, env=_environments(TASKS[config.task]))
    model.load_replay_buffer(directory / REPLAY_BUFFER)
    model.set_random_seed(config.seed + model.num_timesteps)  # other initial states than those it began with
    return model


@dataclass
class _Checkpoints:
    """Called by sbx after every step of its environments: keeps the state of the run, and its best policy."""

    config: ExpertConfig
    model: Any
    bar: tqdm
    started_from: str | None

    def __call__(self, _locals: dict, _globals: dict) -> bool:
        before, now = self.bar.n, self.model.num_timesteps
        self.bar.update(now - before)
        if before // self.config.checkpoint_every < now // self.config.checkpoint_every:
            self.write()
        return True

    def write(self) -> None:
        directory = self.config.checkpoint_dir
        card = _card(self.config, self.model.num_timesteps, self.started_from)
        expert = measure(_export(self.model, card), SELECTION_EPISODES, SELECTION_SEED)
        best = load_expert(directory / BEST) if (directory / BEST).exists() else None
        if best is None or best.card.deterministic.mean < expert.card.deterministic.mean:
            save_expert(expert, directory / BEST)
        self.bar.set_postfix_str(f"D4RL score {expert.card.deterministic.d4rl_score:.1f}")
        # The replay buffer first: a kill in between leaves it newer than the model, which does no harm.
        for name, save in ((REPLAY_BUFFER, self.model.save_replay_buffer), (MODEL, self.model.save)):
            save(directory / f"new_{name}")
            (directory / f"new_{name}").replace(directory / name)


def _export(model: Any, card: ExpertCard) -> Expert:
    """The actor's deterministic part."""
    layers = model.policy.actor_state.params["params"]
    dense = [layers[f"Dense_{i}"] for i in range(len(HIDDEN) + 1)]
    size = TASKS[card.task].observation_size
    return Expert(
        weights=tuple(np.asarray(layer["kernel"]) for layer in dense),
        biases=tuple(np.asarray(layer["bias"]) for layer in dense),
        observation_mean=np.zeros(size, np.float32),
        observation_std=np.ones(size, np.float32),
        card=card,
    )


def _card(config: ExpertConfig, steps: int, started_from: str | None) -> ExpertCard:
    """A card that awaits its measurements."""
    return ExpertCard(
        task=config.task,
        environment=f"{config.task}-v5",
        algorithm=config.algorithm,
        steps=steps,
        seed=config.seed,
        hyper_parameters={name: getattr(config, name) for name in HYPER_PARAMETERS},
        episodes=0,
        deterministic=Returns(0.0, 0.0, 0.0),
        noisy=Returns(0.0, 0.0, 0.0),
        versions={name: version(name) for name in ("sbx-rl", "gymnasium", "mujoco")},
        started_from=started_from,
    )


def _describe(card: ExpertCard) -> str:
    score = card.deterministic.d4rl_score
    return f"{card.algorithm}, {card.steps} steps, seed {card.seed}, D4RL score {score}"
