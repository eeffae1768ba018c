import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from waiting import PATIENCE_S

from singleshot.rl.environments import LOCOMOTION, make_environment
from singleshot.rl.evaluation import play
from singleshot.rl.evaluation.play import Environments

SEEDS = (100, 101, 102)


def make(cores):
    """Environments of two agents on so many cores, however few there are of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(play, "LEAST_SHARE", 1)
        return Environments(LOCOMOTION["Hopper"], 2, len(SEEDS), cores)


@pytest.fixture
def environments():
    """Makes environments that a test may close."""
    made = []

    def make_and_keep(cores):
        made.append(make(cores))
        return made[-1]

    yield make_and_keep
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def by_cores():
    """Environments by the number of their cores, for all tests: a process imports for a second."""
    made = {cores: make(cores) for cores in (1, 2, 4)}
    yield made
    for each in made.values():
        each.close()


def play_through(environments, actions):
    """Everything that comes out, those that have ended left out of later steps: by step."""
    first = environments.reset()
    running, steps = np.ones(first.shape[:2], bool), [first]
    for action in actions:
        agents, episodes = np.nonzero(running)
        observations, rewards, ended = environments.step(agents, episodes, action[agents, episodes])
        steps += [observations, rewards, ended]
        running[agents, episodes] = ~ended
    assert not running.all(), "some fell"
    assert running.any(), "some did not"
    return steps


@pytest.fixture(scope="module")
def actions():
    return np.random.default_rng(0).uniform(-1, 1, (15, 2, 3, 3)).astype(np.float32)


def test_steps_are_those_of_gymnasium_one_by_one(environments, actions):
    steps = iter(play_through(environments(cores=1), actions))
    alone = [[make_environment(LOCOMOTION["Hopper"]) for _ in SEEDS] for _ in range(2)]
    first = [[e.reset(seed=seed)[0] for e, seed in zip(row, SEEDS, strict=True)] for row in alone]
    assert np.array_equal(next(steps), np.array(first, np.float32))
    running = np.ones((2, 3), bool)
    for action in actions:
        observations, rewards, ended = next(steps), next(steps), next(steps)
        for i, (agent, episode) in enumerate(np.argwhere(running)):
            observation, reward, terminated, truncated, _ = alone[agent][episode].step(action[agent, episode])
            assert np.array_equal(observations[i], observation.astype(np.float32))
            assert rewards[i] == reward
            assert ended[i] == (terminated or truncated)
            running[agent, episode] = not ended[i]


@pytest.mark.slow
def test_more_processes_change_nothing(by_cores, actions):
    expected = play_through(by_cores[1], actions)
    for cores in (2, 4):
        several = by_cores[cores]
        assert len(several.others) == cores - 1
        for _ in range(2):  # and again, in the same processes
            for own, other in zip(play_through(several, actions), expected, strict=True):
                assert own.dtype == other.dtype
                assert np.array_equal(own, other)


def played_alone(seed, actions):
    """Positions and rewards of an episode in Gymnasium's own environment."""
    alone = make_environment(LOCOMOTION["Hopper"])
    alone.reset(seed=seed)
    positions, rewards, ended = [alone.unwrapped.data.qpos.copy()], [], False
    for action in actions:
        if not ended:
            _, reward, ended, _, _ = alone.step(action)
            positions.append(alone.unwrapped.data.qpos.copy())
            rewards.append(reward)
    return positions, rewards


def test_each_agents_episode_of_median_return_is_kept(by_cores, actions):
    episodes = [played_alone(seed, actions[:, 1, i]) for i, seed in enumerate(SEEDS)]
    returns = [sum(rewards) for _, rewards in episodes]
    (expected,) = (each for each in episodes if sum(each[1]) == np.median(returns))
    for several in by_cores.values():
        for _ in range(2):
            play_through(several, actions)
            _, second = several.median_episodes()
            assert np.array_equal(second.positions, expected[0])
            assert np.array_equal(second.rewards, expected[1])
            assert (second.environment, second.step_seconds) == (LOCOMOTION["Hopper"], 0.008)


@pytest.mark.slow
def test_processes_end_with_close_even_in_the_middle_of_a_step(environments):
    several = environments(cores=3)
    several.reset()
    processes = [other.process for other in several.others]
    several.others[0].connection.send(("reset", ()))  # nobody listens to the answer
    several.close()
    assert [process.exitcode for process in processes] == [0, 0]


@pytest.mark.slow
def test_a_process_that_is_killed_is_an_error_that_says_so(environments):
    several = environments(cores=2)
    several.reset()
    os.kill(several.others[0].process.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="a process that steps environments ended with exit code -9"):
        several.reset()


def test_a_ctrl_c_is_the_parents_to_act_on(by_cores):
    """A terminal sends it to every process of the sweep; these would end with a traceback each."""
    several = by_cores[2]
    first = several.reset()
    os.kill(several.others[0].process.pid, signal.SIGINT)
    assert np.array_equal(several.reset(), first)


SWEEP = """
import signal
from singleshot.rl.evaluation import play
from singleshot.rl.environments import LOCOMOTION
if __name__ == "__main__":
    play.LEAST_SHARE = 1
    environments = play.Environments(LOCOMOTION["Hopper"], 1, 2, 2)
    environments.reset()
    print(environments.others[0].process.pid, flush=True)
    signal.pause()
"""


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(tmp_path):
    script = tmp_path / "sweep.py"
    script.write_text(SWEEP)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])}
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, env=environment, text=True
    ) as sweep:
        child = psutil.Process(int(sweep.stdout.readline()))
        sweep.kill()
    child.wait(timeout=PATIENCE_S)
