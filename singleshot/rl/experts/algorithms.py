"""Algorithms that train experts: TQC and TD3 from sbx, PPO from Stable-Baselines3.

This module is imported only when an expert is trained. All algorithms have the same form of actor: hidden
layers of 256 units with ReLU, tanh at the end, raw observations.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sbx
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from singleshot.io.whole_file import move_synced
from singleshot.rl.environments import LOCOMOTION, make_environment, spaces_of
from singleshot.rl.experts.config import HIDDEN, ExpertConfig
from singleshot.rl.experts.policy import ACTION_NOISE, Expert

ENVIRONMENTS = 8
"""Number of environments that are stepped in lockstep."""
GRADIENT_STEPS = 32
"""Number of off-policy updates between two phases of collection, compiled as one loop. An update of TQC
takes 4 ms on one core."""
MODEL, REPLAY_BUFFER, REWARD_SCALE = "model.zip", "replay_buffer.pkl", "reward_scale.pkl"

Layer = tuple[NDArray[np.float32], NDArray[np.float32]]


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
            size = spaces_of(LOCOMOTION[config.environment]).action_size
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
