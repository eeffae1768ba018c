"""An episode that can be watched and disturbed while it runs."""

import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from numpy.typing import NDArray

from singleshot.errors import UserError
from singleshot.rl.environments import Environment, make_environment
from singleshot.rl.evaluation.drawing import Body

PUSH_SECONDS = 0.1
"""Duration of a push, in seconds."""
TORSO = 1
"""MuJoCo's number of the torso; body 0 is the world."""


class LiveEpisode:
    """An environment with the state, outcome and body position of its running episode."""

    def __init__(self, environment: Environment, seed: int) -> None:
        self._environment = make_environment(environment)
        simulation = self._environment.unwrapped
        if not isinstance(simulation, MujocoEnv):
            raise UserError(f"{environment.id} is not simulated by MuJoCo, so it can't be watched")
        self._simulation, self._body = simulation, Body(environment)
        self.step_seconds = simulation.dt
        self.state: NDArray[np.float32] = self._environment.reset(seed=seed)[0].astype(np.float32)
        """State that a policy acts on, (state,)."""
        self.steps, self.total, self.fell, self.ended = 0, 0.0, False, False
        self._pushed_until = 0.0

    def step(self, action: NDArray[np.float32]) -> None:
        """Take an action (action,). Does nothing after the episode ended, by a fall or the time limit."""
        if self.ended:
            return
        if self.seconds >= self._pushed_until:
            self._simulation.data.xfrc_applied[:] = 0
        state, reward, self.fell, truncated, _ = self._environment.step(action)
        self.state, self.total = state.astype(np.float32), self.total + float(reward)
        self.steps += 1
        self.ended = self.fell or truncated

    def push(self, newton: float) -> None:
        """Apply a horizontal force to the torso for :data:`PUSH_SECONDS`, forwards if it is positive."""
        self._simulation.data.xfrc_applied[TORSO, 0] = newton
        self._pushed_until = self.seconds + PUSH_SECONDS

    @property
    def seconds(self) -> float:
        """Seconds of simulated time since the beginning."""
        return self.steps * self.step_seconds

    @property
    def position(self) -> float:
        """Position of the torso along the ground, in metres."""
        return float(self._simulation.data.qpos[0])

    @property
    def speed(self) -> float:
        """Speed of the torso along the ground, in metres per second."""
        return float(self._simulation.data.qvel[0])

    @property
    def upright(self) -> float:
        """Cosine of the torso's tilt: 1 as it stands at the beginning, 0 on its side, -1 on its back."""
        return float(self._simulation.data.xmat[TORSO].reshape(3, 3)[2, 2])

    def capsules(self) -> NDArray[np.float64]:
        """The body's capsules, far limbs first: (n, 5) metres.

        A row is x, z, x', z', r: the points within r of the segment from (x, z) to (x', z').
        """
        capsules = self._body.capsules(self._simulation.data.qpos)
        radius = capsules.radius[:, None]
        return np.hstack([capsules.start, capsules.stop, radius])[self._body.order]

    def close(self) -> None:
        """Close the simulation."""
        self._environment.close()
