"""Online training of the experts whose rollouts are the default datasets: TQC, TD3 or PPO, one script.

    python -m singleshot.io.uv pip install -r requirements-experts.lock
    python -m experts.train Hopper
    python -m experts.train Hopper --resume --steps 3000000

TQC and TD3 are sbx's (Stable-Baselines3 in JAX), PPO is Stable-Baselines3's. All have the same form of actor:
hidden layers of 256 units with ReLU, tanh at the end, raw observations. A policy is taken every
`--checkpoint-every` steps. The best of these policies in a few deterministic episodes is kept, and then
measured in other episodes. An interrupted run resumes from its last checkpoint, but not bit for bit, because
its environments start new episodes.
"""

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from singleshot.errors import UserError
from singleshot.io.whole_file import move_synced
from singleshot.rl.environments import LOCOMOTION, known_spaces, make_environment
from singleshot.rl.experts.collect import returns
from singleshot.rl.experts.policy import ACTION_NOISE, Expert, ExpertCard, Returns, load_expert, save_expert

try:
    import sbx
    from stable_baselines3 import PPO
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
except ImportError as error:
    sys.exit(
        f"training an expert needs sbx ({error}); "
        "`python -m singleshot.io.uv pip install -r requirements-experts.lock`"
    )

HIDDEN = [256, 256]
"""Widths of the hidden layers of actor and critics."""
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
ENVIRONMENTS = 8
"""Number of environments that are stepped in lockstep."""
GRADIENT_STEPS = 32
"""Number of off-policy updates between two phases of collection, compiled as one loop. An update of TQC
takes 4 ms on one core."""
MODEL, REPLAY_BUFFER, REWARD_SCALE = "model.zip", "replay_buffer.pkl", "reward_scale.pkl"

Layer = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True)
class ExpertConfig:
    """The options of the command. The card of a shipped expert has the settings it was trained with."""

    environment: str
    """A name of `LOCOMOTION`."""
    output: Path
    checkpoint_dir: Path
    steps: int = field(
        default=2_000_000,
        metadata={"help": "environment steps in total, with those that fill the replay buffer"},
    )
    seed: int = field(default=0, metadata={"help": "seed of networks, exploration and environments"})
    algorithm: Literal["TQC", "TD3", "PPO"] = field(
        default="TQC", metadata={"help": "TQC to begin with, PPO to improve a policy"}
    )
    start_from: Path | None = field(
        default=None, metadata={"help": "an expert to improve, in place of random actions"}
    )
    resume: bool = field(
        default=False, metadata={"help": "go on from the last checkpoint in the checkpoint directory"}
    )
    steps_per_update: int = field(
        default=2, metadata={"help": "environment steps per gradient update; a step is a twentieth of one"}
    )
    batch_size: int = field(default=128, metadata={"help": "transitions per gradient update"})
    learning_rate: float = field(
        default=5e-4, metadata={"help": "of the actor; for TQC and PPO it falls linearly to a tenth"}
    )
    initial_steps: int = field(
        default=10_000, metadata={"help": "steps before the first update, at random or by the first policy"}
    )
    critic_warmup: int = field(
        default=20_000, metadata={"help": "with --start-from, updates of the critics alone (TQC, TD3)"}
    )
    checkpoint_every: int = field(
        default=50_000, metadata={"help": "environment steps between two checkpoints"}
    )


class OffPolicy:
    """TQC (Kuznetsov et al. 2020) or TD3 (Fujimoto et al. 2018) from sbx."""

    def __init__(self, config: ExpertConfig) -> None:
        options: dict[str, Any] = {
            "policy": "MlpPolicy",
            "env": _environments(config),
            "policy_kwargs": {"net_arch": HIDDEN},
            "batch_size": config.batch_size,
            "learning_starts": 0 if config.start_from else config.initial_steps,
            "train_freq": config.steps_per_update * GRADIENT_STEPS // ENVIRONMENTS,
            "gradient_steps": GRADIENT_STEPS,
            "policy_delay": 2,
            "seed": config.seed,
        }
        if config.algorithm == "TQC":
            # Next to the rewards, an entropy bonus of weight 1 would drown out what the expert has learned.
            entropy = "auto_0.05" if config.start_from else "auto"
            self.model = sbx.TQC(learning_rate=_decay(config.learning_rate), ent_coef=entropy, **options)
        else:
            size = known_spaces(LOCOMOTION[config.environment]).action_size
            noise = NormalActionNoise(np.zeros(size), np.full(size, ACTION_NOISE))
            self.model = sbx.TD3(learning_rate=config.learning_rate, action_noise=noise, **options)

    def layers(self) -> Sequence[Layer]:
        """W (inputs, outputs) and b of each layer of the actor's mean."""
        dense = self.model.policy.actor_state.params["params"]
        names = [f"Dense_{i}" for i in range(len(HIDDEN) + 1)]
        return [(np.asarray(dense[name]["kernel"]), np.asarray(dense[name]["bias"])) for name in names]

    def start_from(self, expert: Expert, config: ExpertConfig) -> None:
        """Take over the expert's layers, and fit the critics to this actor while it stays unchanged."""
        self._copy(expert)
        model = self.model
        model.gradient_steps = 0
        model.learn(config.steps, callback=lambda *_: model.num_timesteps < config.initial_steps)
        actor, entropy = model.policy.actor_state, getattr(model, "ent_coef_state", None)
        for _ in range(config.critic_warmup // GRADIENT_STEPS):
            model.train(GRADIENT_STEPS, config.batch_size)
            model.policy.actor_state = actor
            if entropy is not None:
                model.ent_coef_state = entropy
        model.gradient_steps = GRADIENT_STEPS

    def _copy(self, expert: Expert) -> None:
        """Copy the expert's layers to the actor and to its target, if any; TQC's Gaussian gets σ = 1/e."""
        state = self.model.policy.actor_state
        layers = dict(state.params["params"])
        for i, (weight, bias) in enumerate(zip(expert.weights, expert.biases, strict=True)):
            layers[f"Dense_{i}"] = {"kernel": weight, "bias": bias}
        log_std = f"Dense_{len(expert.weights)}"
        if log_std in layers:
            layers[log_std] = {
                "kernel": 0 * layers[log_std]["kernel"],
                "bias": 0 * layers[log_std]["bias"] - 1,
            }
        targets = {"target_params": {"params": layers}} if hasattr(state, "target_params") else {}
        self.model.policy.actor_state = state.replace(params={"params": layers}, **targets)

    def save(self, directory: Path) -> None:
        """Write all that :meth:`load` needs. Even a kill meanwhile leaves a state that can be resumed."""
        # The replay buffer comes first: a buffer that is newer than the model does no harm.
        _replace(directory / REPLAY_BUFFER, self.model.save_replay_buffer)
        _replace(directory / MODEL, self.model.save)

    def load(self, directory: Path) -> None:
        """Resume from the files that :meth:`save` wrote, in new episodes."""
        self.model = type(self.model).load(directory / MODEL, env=self.model.env)
        self.model.load_replay_buffer(directory / REPLAY_BUFFER)
        _seed_anew(self.model)


class OnPolicy:
    """PPO (Schulman et al. 2017) from Stable-Baselines3.

    PPO's small steps improve a policy that is already good. TD3 and TQC, whose critics are new, unlearn such
    a policy first: TD3 took a Walker2d from a return of 3,930 to 900 with 25,000 updates.
    """

    ACTION_NOISE = 0.2
    """Initial standard deviation of actions. With 0.1, a Walker2d's noisy return stagnated for 1M steps."""

    def __init__(self, config: ExpertConfig) -> None:
        self.model = PPO(
            _TanhPolicy,
            VecNormalize(_environments(config), norm_obs=False, gamma=0.99),
            learning_rate=_decay(config.learning_rate),
            n_steps=1024,
            batch_size=config.batch_size,
            clip_range=0.1,
            target_kl=0.03,
            policy_kwargs={
                "net_arch": {"pi": HIDDEN, "vf": HIDDEN},
                "activation_fn": torch.nn.ReLU,
                "log_std_init": math.log(self.ACTION_NOISE),
            },
            seed=config.seed,
            device="cpu",
        )

    def layers(self) -> Sequence[Layer]:
        """W (inputs, outputs) and b of each layer of the actor's mean."""
        return [
            (lin.weight.detach().numpy().T.copy(), lin.bias.detach().numpy().copy()) for lin in self._linear()
        ]

    def start_from(self, expert: Expert, config: ExpertConfig) -> None:
        """Take over the expert's layers, and fit the critic to this actor while it stays unchanged."""
        for linear, weight, bias in zip(self._linear(), expert.weights, expert.biases, strict=True):
            linear.weight.data = torch.from_numpy(weight.T.copy())
            linear.bias.data = torch.from_numpy(bias.copy())
        model = self.model
        actor = [model.policy.log_std, *(p for linear in self._linear() for p in linear.parameters())]
        for parameter in actor:
            parameter.requires_grad_(False)
        model.learn(config.steps, callback=lambda *_: model.num_timesteps < config.initial_steps)
        for parameter in actor:
            parameter.requires_grad_(True)

    def _linear(self) -> list[torch.nn.Linear]:
        policy = self.model.policy
        modules = [*policy.mlp_extractor.policy_net, *policy.action_net]
        return [module for module in modules if isinstance(module, torch.nn.Linear)]

    def save(self, directory: Path) -> None:
        """Write all that :meth:`load` needs. Even a kill meanwhile leaves a state that can be resumed."""
        _replace(directory / REWARD_SCALE, self.model.env.save)
        _replace(directory / MODEL, self.model.save)

    def load(self, directory: Path) -> None:
        """Resume from the files that :meth:`save` wrote, in new episodes."""
        environments = VecNormalize.load(str(directory / REWARD_SCALE), self.model.env.venv)
        self.model = PPO.load(directory / MODEL, env=environments, device="cpu")
        _seed_anew(self.model)


def make_learner(config: ExpertConfig) -> OffPolicy | OnPolicy:
    """A learner with random weights."""
    return OnPolicy(config) if config.algorithm == "PPO" else OffPolicy(config)


class _TanhPolicy(ActorCriticPolicy):  # type: ignore[misc]
    """A Gaussian policy whose mean is in [-1, 1], like the means of the other algorithms' actors."""

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        super()._build(lr_schedule)
        self.action_net: torch.nn.Module = torch.nn.Sequential(self.action_net, torch.nn.Tanh())


def _environments(config: ExpertConfig) -> DummyVecEnv:
    environment = LOCOMOTION[config.environment]
    return DummyVecEnv([lambda: make_environment(environment)] * ENVIRONMENTS)


def _decay(learning_rate: float) -> Callable[[float], float]:
    """Learning rate that falls linearly over the run, down to a tenth."""
    return lambda remaining: learning_rate * (0.1 + 0.9 * remaining)


def _replace(path: Path, save: Callable[[str], None]) -> None:
    new = path.with_name(f"new_{path.name}")
    save(str(new))
    move_synced(new, path)


def _seed_anew(model: Any) -> None:
    """Change the seed, so that initial states differ from those at the beginning of the run."""
    model.set_random_seed(model.seed + model.num_timesteps)


def train_expert(config: ExpertConfig) -> Expert:
    """Train, choose the best checkpoint, measure it over 30 other episodes, and write it with its card.

    Raises:
        UserError: there is no run to resume, a run would be overwritten, or the expert to start from can't be
            this algorithm's actor.
    """
    learner = make_learner(config)
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


def parse(arguments: Sequence[str] | None = None) -> ExpertConfig:
    """The configuration that a command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m experts.train",
        description="Train an expert, whose rollouts become the training data of agents.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("environment", choices=sorted(LOCOMOTION))
    parser.add_argument(
        "--output", type=Path, help="the file to write; None: experts/ENVIRONMENT.safetensors"
    )
    parser.add_argument("--checkpoint-dir", type=Path, help="None: experts/checkpoints/ENVIRONMENT")
    kinds = get_type_hints(ExpertConfig)
    for option in dataclasses.fields(ExpertConfig)[3:]:
        name, about = f"--{option.name.replace('_', '-')}", option.metadata["help"]
        if kinds[option.name] is bool:
            parser.add_argument(name, action="store_true", help=about)
        elif isinstance(option.default, str):
            parser.add_argument(
                name, choices=get_args(kinds[option.name]), default=option.default, help=about
            )
        else:
            kind = Path if option.default is None else type(option.default)
            parser.add_argument(name, type=kind, default=option.default, help=about)
    given = parser.parse_args(arguments)
    here = Path(__file__).parent
    given.output = given.output or here / f"{given.environment.lower()}.safetensors"
    given.checkpoint_dir = given.checkpoint_dir or here / "checkpoints" / given.environment
    for name in ("steps", "steps_per_update", "batch_size", "learning_rate", "checkpoint_every"):
        if getattr(given, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} is {getattr(given, name)}; it has to be above 0")
    return ExpertConfig(**vars(given))


def main() -> None:
    """Train as the command line says."""
    config = parse()
    try:
        found = train_expert(config).card.deterministic
    except UserError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; go on with the same command and --resume")
    print(f"{config.output}: mean return {found.mean:,.0f}, D4RL score {found.d4rl_score:.1f}")


if __name__ == "__main__":
    main()
