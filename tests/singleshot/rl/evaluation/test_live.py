"""Episodes to watch against Gymnasium's own, and pushes against Newton's second law."""

import mujoco
import numpy as np
import pytest

from singleshot.rl.environments import LOCOMOTION, make_environment
from singleshot.rl.evaluation.live import PUSH_SECONDS, LiveEpisode


@pytest.mark.parametrize("name", sorted(LOCOMOTION))
def test_an_episode_is_gymnasiums(name):
    random = np.random.default_rng(0)
    live, environment = LiveEpisode(LOCOMOTION[name], seed=3), make_environment(LOCOMOTION[name])
    state, _ = environment.reset(seed=3)
    total, ended = 0.0, False
    while not ended:
        assert live.state == pytest.approx(state, rel=1e-6)
        action = random.uniform(-1, 1, environment.action_space.shape).astype(np.float32)
        live.step(action)
        state, reward, terminated, truncated, _ = environment.step(action)
        total, ended = total + reward, terminated or truncated
        assert (live.fell, live.ended) == (terminated, ended)
    assert live.total == pytest.approx(total)
    steps = live.steps
    live.step(action)
    assert live.steps == steps
    live.close()


def test_capsules_are_where_mujoco_has_their_ends():
    live = LiveEpisode(LOCOMOTION["Walker2d"], seed=0)
    live.step(np.ones(6, np.float32))
    model, data = live._simulation.model, live._simulation.data
    mujoco.mj_kinematics(model, data)
    ends = []
    for geom in range(1, model.ngeom):  # the first is the floor
        half = data.geom_xmat[geom].reshape(3, 3) @ [0, 0, model.geom_size[geom, 1]]
        start, stop = data.geom_xpos[geom] - half, data.geom_xpos[geom] + half
        ends.append([start[0], start[2], stop[0], stop[2], model.geom_size[geom, 0]])
    assert np.sort(live.capsules(), axis=0) == pytest.approx(np.sort(ends, axis=0))


def test_a_push_is_worth_its_impulse_and_ends():
    """Of two alike, one pushed: after the push their momenta differ by force times time, if none is on the
    ground."""
    pushed, left = (LiveEpisode(LOCOMOTION["HalfCheetah"], seed=0) for _ in range(2))
    still = np.zeros(6, np.float32)
    for live in (pushed, left):
        live._simulation.data.qpos[1] += 5  # in the air: no friction
    pushed.push(200)
    for _ in range(round(PUSH_SECONDS / pushed.step_seconds)):
        pushed.step(still)
        left.step(still)
    gained = momentum(pushed) - momentum(left)
    assert gained == pytest.approx(200 * PUSH_SECONDS, rel=0.02)
    pushed.step(still)
    left.step(still)
    assert momentum(pushed) - momentum(left) == pytest.approx(gained, rel=0.02)


def momentum(live):
    """Along the ground, kg m/s."""
    model, data = live._simulation.model, live._simulation.data
    mujoco.mj_forward(model, data)  # velocities of bodies are a substep behind
    mujoco.mj_subtreeVel(model, data)
    return model.body_subtreemass[1] * data.subtree_linvel[1, 0]


def test_a_body_on_its_back_has_its_torso_turned():
    live = LiveEpisode(LOCOMOTION["HalfCheetah"], seed=0)
    assert live.upright > 0.95
    simulation = live._simulation
    position, velocity = simulation.data.qpos.copy(), simulation.data.qvel.copy()
    position[2] = np.pi  # the pitch of the torso
    simulation.set_state(position, 0 * velocity)
    assert live.upright == pytest.approx(-1)
    for _ in range(60):
        live.step(np.zeros(6, np.float32))
    assert live.upright < 0
    assert not live.ended
