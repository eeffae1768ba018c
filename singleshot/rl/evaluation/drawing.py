"""Videos of episodes, drawn without OpenGL or rendered by MuJoCo.

Bodies are drawn as capsules and spheres, as seen from the side.

The bodies of D4RL's three environments move in the plane of x and z, so the side view loses nothing. From the
side, a capsule looks like a capsule whatever its direction, so the bodies of other environments can be drawn,
too.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, repeat
from pathlib import Path

import av
import cv2
import mujoco
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont
from scipy.ndimage import uniform_filter1d

from singleshot.errors import explained
from singleshot.io.h264 import VideoFormat, add_h264, address, encode
from singleshot.io.images import Frame
from singleshot.rl.environments import Environment, make_environment
from singleshot.rl.evaluation.episode import PlayedEpisode

Colour = tuple[int, ...]

WIDTH, HEIGHT = 854, 480
COLOUR = "#0b5c8f"
CRF = 27
"""Constant rate factor of H.264 at which flat colours and straight edges still look clean."""

LEAST_FRAMES_PER_SECOND = 30
"""Lowest frame rate of a video, if the simulation has as many steps per second: below some 20, the eye sees
single pictures."""
METRES_HIGH = {"HalfCheetah": 1.5}
OTHER_METRES_HIGH = 1.8
"""Height of a lane above the ground for environments that are not in `METRES_HIGH`, in metres: a standing
Walker2d reaches up to 1.45 m, a Hopper up to 1.5 m, and both jump."""
GROUND = 0.17
"""Fraction of a lane's height that is below the ground."""
CAMERA_SECONDS = 0.6
"""Seconds over which the camera's position is averaged, so that bodies swing but the picture does not."""
SPEED_SECONDS = 0.5
"""Seconds before the present over which speed is averaged: about one stride."""
HOLD_SECONDS = 1.0
"""Seconds for which the last frame stays, as it shows the result."""
SKY, EARTH, LINE, MARK = (245, 247, 249), (226, 231, 236), (82, 96, 109), (214, 220, 226)
INK, MUTED = (31, 41, 51), (82, 96, 109)
FALLEN = 0.55
"""Fraction of the background's colour in the colour of a fallen body."""
SUBPIXELS = 4
"""Number of bits of the fraction in OpenCV's fixed-point coordinates."""


@dataclass(frozen=True)
class Capsules:
    """A body in one position, in metres: the points within `radius` of the segment from `start` to `stop`."""

    start: NDArray[np.float64]
    """(n, 2): x, z."""
    stop: NDArray[np.float64]
    radius: NDArray[np.float64]
    """(n,)"""


class Body:
    """The geoms of an environment's model, posed by MuJoCo's kinematics."""

    def __init__(self, environment: Environment) -> None:
        simulation = make_environment(environment).unwrapped
        assert isinstance(simulation, MujocoEnv)
        self.model: mujoco.MjModel = simulation.model
        self.data = mujoco.MjData(self.model)
        # A sphere is drawn as a capsule of length 0.
        shapes = [mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_SPHERE]
        self.geoms = np.flatnonzero(np.isin(self.model.geom_type, shapes))
        # Limbs on the far side are drawn first, the torso last.
        limbs = self._limbs()
        self.shades = np.linspace(0.45, 0.0, limbs.max(initial=0) + 1)[limbs]
        """Fraction of white in each capsule's colour, which distinguishes one leg from the other."""
        self.order = np.argsort(limbs, kind="stable")

    def capsules(self, positions: NDArray[np.float64]) -> Capsules:
        """The body at MuJoCo's `qpos`, (coordinates,)."""
        self.data.qpos[:] = positions
        mujoco.mj_kinematics(self.model, self.data)
        centre = self.data.geom_xpos[self.geoms][:, [0, 2]]
        # A capsule's axis is the z-axis of its frame: the third column of the rotation (3, 3).
        axis = self.data.geom_xmat[self.geoms].reshape(-1, 3, 3)[:, [0, 2], 2]
        half = axis * self.model.geom_size[self.geoms, 1, None]
        return Capsules(centre - half, centre + half, self.model.geom_size[self.geoms, 0].copy())

    def _limbs(self) -> NDArray[np.intp]:
        """Number of each capsule's limb, counted from the last limb; the torso has the highest number."""
        parents, torso = self.model.body_parentid, 1
        roots = []
        for body in self.model.geom_bodyid[self.geoms]:
            while body != torso and parents[body] != torso:
                body = parents[body]
            roots.append(int(body))
        limbs = sorted(set(roots) - {torso}, reverse=True)
        return np.array([len(limbs) if root == torso else limbs.index(root) for root in roots], np.intp)


@dataclass(frozen=True)
class Caption:
    """Label and colour of the agent in a lane."""

    label: str
    colour: str
    """Colour of body and label, as `#rrggbb`."""


class Lane:
    """The frames of an episode: the agent between distance marks, its speed, its return so far."""

    def __init__(self, episode: PlayedEpisode, caption: Caption, width: int, height: int) -> None:
        self.episode, self.caption = episode, caption
        self.width, self.height = width, height
        self.body = Body(episode.environment) if episode.positions.size else None
        self.colour = np.array(ImageColor.getrgb(caption.colour), dtype=np.float64)
        self.ground = round(height * (1 - GROUND))
        self.scale = self.ground / METRES_HIGH.get(episode.environment.name, OTHER_METRES_HIGH)
        """Pixels per metre."""
        averaged = max(1, round(CAMERA_SECONDS / episode.step_seconds))
        self.distance = episode.positions[:, 0] if self.body else np.zeros(len(episode.positions))
        self.camera = uniform_filter1d(self.distance, averaged, mode="nearest")
        """x of the middle of the picture after each step, in metres."""
        self.returns = episode.returns
        self.large, self.small = (ImageFont.load_default(height * share) for share in (0.083, 0.07))

    def draw(self, step: int) -> Frame:
        """The frame after `step` steps, (height, width, 3) RGB; the last frame if the episode is shorter."""
        last = len(self.episode.rewards)
        step, ended = min(step, last), step >= last and self.episode.fell
        canvas = np.full((self.height, self.width, 3), SKY, dtype=np.uint8)
        canvas[self.ground :] = EARTH
        camera, reach = self.camera[step], self.width / 2 / self.scale
        metres = range(math.ceil(camera - reach), math.floor(camera + reach) + 1)
        marks = {metre: round(self.width / 2 + (metre - camera) * self.scale) for metre in metres}
        for at in marks.values():
            cv2.line(canvas, (at, 0), (at, self.ground), MARK, 1)
            cv2.line(canvas, (at, self.ground), (at, self.ground + self.height // 40), LINE, 1)
        cv2.line(canvas, (0, self.ground), (self.width, self.ground), LINE, 2)
        if self.body:
            self._draw_body(self.body, canvas, step, FALLEN if ended else 0.0)
        return self._write(canvas, step, ended, marks)

    def _draw_body(self, body: Body, canvas: Frame, step: int, faded: float) -> None:
        capsules = body.capsules(self.episode.positions[step])
        origin = np.array([self.width / 2 - self.camera[step] * self.scale, self.ground])
        start, stop = (
            origin + self.scale * ends * [1, -1] for ends in (capsules.start, capsules.stop)
        )  # rows count downwards
        radius = self.scale * capsules.radius
        for i in body.order:
            colour = self.colour + (255 - self.colour) * body.shades[i]
            shown = colour + (np.array(SKY) - colour) * faded
            # A rim in the background's colour separates limbs where they cross.
            _fill_capsule(canvas, start[i], stop[i], radius[i] + 1.2, SKY)
            _fill_capsule(canvas, start[i], stop[i], radius[i], tuple(round(float(value)) for value in shown))

    def _write(self, canvas: Frame, step: int, ended: bool, marks: Mapping[int, int]) -> Frame:
        picture = Image.fromarray(canvas)
        draw, margin = ImageDraw.Draw(picture), self.height // 30
        for metre, at in marks.items():
            draw.text((at, self.height - margin), f"{metre} m", MUTED, self.small, anchor="ms")
        draw.text((margin, margin), self.caption.label, self.caption.colour, self.large, anchor="la")
        right = self.width - margin
        draw.text((right, margin), f"return {self.returns[step]:,.0f}", INK, self.large, anchor="ra")
        second = margin + round(self.height * 0.1)
        draw.text((right, second), self._pace(step, ended), MUTED, self.small, anchor="ra")
        return np.array(picture)

    def _pace(self, step: int, ended: bool) -> str:
        if ended:
            return f"fell after {step * self.episode.step_seconds:.1f} s"
        before = max(0, step - round(SPEED_SECONDS / self.episode.step_seconds))
        seconds = (step - before) * self.episode.step_seconds
        metres = self.distance[step] - self.distance[before]
        # Adding 0.0 turns -0.0 into 0.0: a speed that rounds to zero has no sign.
        return f"{round(metres / seconds, 1) + 0.0:.1f} m/s" if seconds else "0.0 m/s"


class SideBySide:
    """Episodes of one environment in step: a lane (height, width) for each, two per row."""

    def __init__(
        self, episodes: Sequence[PlayedEpisode], captions: Sequence[Caption], width: int, height: int
    ) -> None:
        self.lanes = [Lane(*pair, width, height) for pair in zip(episodes, captions, strict=True)]
        self.step_seconds = episodes[0].step_seconds
        self.longest = max(len(episode.rewards) for episode in episodes)
        self.every = max(1, math.floor(1 / (LEAST_FRAMES_PER_SECOND * self.step_seconds)))
        """Number of steps from one frame of :meth:`frames` to the next."""

    @property
    def frames_per_second(self) -> float:
        """Frame rate at which :meth:`frames` shows the real speed."""
        return 1 / (self.step_seconds * self.every)

    def draw(self, step: int) -> Frame:
        """The frame after `step` steps, RGB."""
        pictures = [lane.draw(step) for lane in self.lanes]
        if len(pictures) == 1:
            return pictures[0]
        pictures += [np.full_like(pictures[0], SKY)] * (len(pictures) % 2)
        for left, right in zip(pictures[::2], pictures[1::2], strict=True):
            left[:, -1] = LINE  # between left and right
            left[-1] = right[-1] = LINE
        return np.vstack([np.hstack(pictures[row : row + 2]) for row in range(0, len(pictures), 2)])

    def frames(self, seconds: float = math.inf) -> Iterator[Frame]:
        """Frames until `seconds`, or the end of the longest episode; the last frame stays for a while."""
        last = int(min(self.longest, seconds / self.step_seconds))
        for step in range(0, last + 1, self.every):
            yield self.draw(step)
        yield from repeat(self.draw(last), round(HOLD_SECONDS * self.frames_per_second))


def _fill_capsule(
    canvas: Frame, start: NDArray[np.float64], stop: NDArray[np.float64], radius: float, colour: Colour
) -> None:
    """Fill the points within `radius` of a segment, smoothly. Coordinate 0 is the first pixel's edge."""
    radius -= 0.5  # OpenCV fills the pixels on the outline, too
    along = stop - start
    across = radius * np.array([-along[1], along[0]]) / max(float(np.hypot(*along)), 1e-9)
    corners = np.array([start + across, stop + across, stop - across, start - across])
    cv2.fillConvexPoly(canvas, _fixed(corners), colour, cv2.LINE_AA, SUBPIXELS)
    for x, y in _fixed(np.array([start, stop])):
        fixed_radius = round(radius * (1 << SUBPIXELS))
        cv2.circle(canvas, (int(x), int(y)), fixed_radius, colour, -1, cv2.LINE_AA, SUBPIXELS)


def _fixed(points: NDArray[np.float64]) -> NDArray[np.int32]:
    """OpenCV's coordinates: 0 is the middle of the first pixel, the last SUBPIXELS bits are a fraction."""
    return np.round((points - 0.5) * (1 << SUBPIXELS)).astype(np.int32)


def write_video(path: Path, frames: Iterable[Frame], frames_per_second: float) -> None:
    """Write frames as an H.264 video in an MP4 file. Raises UserError if the video can't be written there."""
    frames = iter(frames)
    first = next(frames)
    height, width, _ = first.shape
    rate = Fraction(frames_per_second).limit_denominator(1000)
    with (
        explained(f"{path}: the video can't be written there", "give another path", OSError),
        av.open(address(path), "w", format="mp4", options={"fflags": "+bitexact"}) as container,
    ):
        stream = add_h264(container, VideoFormat(width, height, str(rate)), CRF)
        for packet in encode(stream, chain([first], frames)):
            container.mux(packet)


def write_drawing(path: Path, episode: PlayedEpisode, label: str) -> None:
    """Write an episode as this project draws it, at its real speed."""
    scene = SideBySide([episode], [Caption(label, COLOUR)], WIDTH, HEIGHT)
    write_video(path, scene.frames(), scene.frames_per_second)
