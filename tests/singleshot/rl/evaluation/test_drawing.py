"""Drawn bodies against kinematics by hand, and against MuJoCo's own picture where it can render."""

import numpy as np
import pytest

from singleshot.rl.environments import LOCOMOTION, Environment
from singleshot.rl.evaluation.drawing import HOLD_SECONDS, SKY, Body, Caption, Lane, SideBySide
from singleshot.rl.evaluation.episode import PlayedEpisode

CAPTION = Caption("an agent", "#d55e00")
HOPPER = np.array([3.0, 1.25, 0.0, 0.0, 0.0, 0.0])
"""Upright, at 3 m."""


def hopper(steps=100, speed=0.01):
    """An episode in which an upright hopper glides."""
    positions = np.tile(HOPPER, (steps + 1, 1))
    positions[:, 0] += speed * np.arange(steps + 1)
    return PlayedEpisode(LOCOMOTION["Hopper"], positions, np.full(steps, 2.0), 0.008, steps < 1000)


def ends(capsules):
    """Both ends of each capsule, whichever is first."""
    pairs = np.stack([capsules.start, capsules.stop], axis=1)
    return [sorted(map(tuple, np.round(pair, 9))) for pair in pairs]


def test_an_upright_hopper_is_its_models_lengths():
    """From hopper.xml: torso from 1.45 to 1.05 m, thigh to 0.6, leg to 0.1, foot from -0.13 to 0.26 m."""
    capsules = Body(LOCOMOTION["Hopper"]).capsules(HOPPER)
    assert ends(capsules) == [
        [(3.0, 1.05), (3.0, 1.45)],
        [(3.0, 0.6), (3.0, 1.05)],
        [(3.0, 0.1), (3.0, 0.6)],
        [(2.87, 0.1), (3.26, 0.1)],
    ]
    assert capsules.radius.tolist() == [0.05, 0.05, 0.04, 0.06]


def test_a_bent_hip_turns_all_below_it():
    """Its axis is -y: by an angle θ, what hangs down swings forwards by sin θ."""
    angle = np.pi / 6
    bent = np.array([3.0, 1.25, 0.0, angle, 0.0, 0.0])
    _, thigh, leg, _ = ends(Body(LOCOMOTION["Hopper"]).capsules(bent))
    knee = 3.0 + 0.45 * np.sin(angle), 1.05 - 0.45 * np.cos(angle)
    ankle = 3.0 + 0.95 * np.sin(angle), 1.05 - 0.95 * np.cos(angle)
    assert np.allclose(sorted([(3.0, 1.05), knee]), thigh)
    assert np.allclose(sorted([knee, ankle]), leg)


def test_a_body_that_is_not_planar_is_seen_from_the_side():
    """From ant.xml: a sphere of 0.25 m for the torso, from which legs begin with 0.2 m along x and y."""
    capsules = Body(Environment("Ant-v5")).capsules(
        np.array([0.0, 0.0, 0.75, 1.0, 0.0, 0.0, 0.0, *[0.0] * 8])
    )
    torso, first = ends(capsules)[:2]
    assert (torso, capsules.radius[0]) == ([(0.0, 0.75), (0.0, 0.75)], 0.25)
    assert first == [(0.0, 0.75), (0.2, 0.75)]


def test_the_body_stays_in_the_middle_and_the_marks_pass_by():
    lane = Lane(hopper(), CAPTION, 400, 226)
    before, after = (lane.draw(step).astype(int) for step in (40, 60))
    torso = round(lane.ground - 1.25 * lane.scale)
    orange = np.array([213, 94, 0])
    for frame in (before, after):
        assert np.abs(frame[torso, 200] - orange).max() < 8
    row = round(0.45 * lane.ground)  # above the thigh no text reaches down here
    marks = [np.flatnonzero((frame[row] < np.array(SKY) - 15).all(axis=1)) for frame in (before, after)]
    marks = [pixels[np.abs(pixels - 200) > 30] for pixels in marks]
    # 20 steps of 0.01 m
    assert marks[0][0] - marks[1][0] == pytest.approx(0.2 * lane.scale, abs=1.5)


def test_an_agent_that_fell_stays_and_fades():
    short, long = hopper(steps=20), hopper(steps=100)
    scene = SideBySide([short, long], [CAPTION, CAPTION], 400, 226)
    ended = scene.draw(20)
    assert ended.shape == (226, 800, 3)
    assert np.array_equal(scene.draw(80)[:, :399], ended[:, :399])
    assert not np.array_equal(scene.draw(80)[:, 400:], ended[:, 400:])
    torso = round(scene.lanes[0].ground - 1.25 * scene.lanes[0].scale)
    before, after = (scene.draw(step)[torso, 170:230].min(axis=0).astype(int) for step in (19, 20))
    assert (before < after - 50).any()  # orange, and paler


def test_pictures_go_at_the_real_speed():
    scene = SideBySide([hopper()], [CAPTION], 400, 226)
    # 125 steps a second, of which every fourth is shown
    assert scene.frames_per_second == pytest.approx(31.25)
    held = round(HOLD_SECONDS * 31.25)
    assert sum(1 for _ in scene.frames()) == 26 + held
    assert sum(1 for _ in scene.frames(seconds=0.4)) == 13 + held
