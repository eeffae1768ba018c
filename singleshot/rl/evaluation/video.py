"""Videos of episodes, drawn by :mod:`~singleshot.rl.evaluation.drawing` or rendered by MuJoCo."""

import ctypes.util
import os
import sys
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain
from pathlib import Path

import av
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv

from singleshot.errors import UserError, in_a_line
from singleshot.io.h264 import VideoFormat, add_h264, address, encode
from singleshot.io.images import Frame
from singleshot.rl.environments import make_environment
from singleshot.rl.evaluation.drawing import Caption, SideBySide
from singleshot.rl.evaluation.episode import PlayedEpisode

WIDTH, HEIGHT = 854, 480
COLOUR = "#0b5c8f"
CRF = 27
"""Constant rate factor of H.264 at which flat colours and straight edges still look clean."""


def write_video(path: Path, frames: Iterable[Frame], frames_per_second: float) -> None:
    """Write frames as an H.264 video in an MP4 file.

    Raises:
        UserError: the video can't be written there.
    """
    frames = iter(frames)
    first = next(frames)
    height, width, _ = first.shape
    rate = Fraction(frames_per_second).limit_denominator(1000)
    try:
        with av.open(address(path), "w", format="mp4", options={"fflags": "+bitexact"}) as container:
            stream = add_h264(container, VideoFormat(width, height, str(rate)), CRF)
            for packet in encode(stream, chain([first], frames)):
                container.mux(packet)
    except OSError as error:
        raise UserError(f"{path}: the video can't be written there: {error.strerror}") from error


def write_drawing(path: Path, episode: PlayedEpisode, label: str) -> None:
    """Write an episode as this project draws it, at its real speed."""
    scene = SideBySide([episode], [Caption(label, COLOUR)], WIDTH, HEIGHT)
    write_video(path, scene.frames(), scene.frames_per_second)


def write_rendering(path: Path, episode: PlayedEpisode) -> None:
    """Write an episode as MuJoCo renders it, (480, 480), a frame for each step, at its real speed.

    Raises:
        UserError: MuJoCo can't render on this machine.
    """
    # Without a display, choose a back end that needs none. By default, Gymnasium tries GLFW and fails.
    if "MUJOCO_GL" not in os.environ and "DISPLAY" not in os.environ and sys.platform == "linux":
        os.environ["MUJOCO_GL"] = "osmesa" if ctypes.util.find_library("EGL") is None else "egl"
    environment = make_environment(episode.environment, render_mode="rgb_array")
    environment.reset(seed=0)
    simulation = environment.unwrapped
    if not isinstance(simulation, MujocoEnv):
        raise UserError(
            f"{episode.environment.id} is not simulated by MuJoCo, so its episodes have no pictures"
        )

    def frames() -> Iterator[Frame]:
        for positions in episode.positions[1:]:
            simulation.set_state(positions, np.zeros(simulation.model.nv))
            try:
                yield np.asarray(environment.render())
            except Exception as error:  # each of MuJoCo's back ends raises its own kind if OpenGL is missing
                raise UserError(
                    f"MuJoCo can't render here with MUJOCO_GL={os.environ.get('MUJOCO_GL', '(unset)')}: "
                    f"{in_a_line(error)}; install a GPU's driver or the packages libegl1 and libgl1-mesa-dri "
                    "(MUJOCO_GL=egl), or else libosmesa6 (MUJOCO_GL=osmesa)"
                ) from error

    write_video(path, frames(), 1 / episode.step_seconds)
    environment.close()
