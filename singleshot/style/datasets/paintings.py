"""Three paintings of our own, drawn with numpy and OpenCV, to learn styles from if no others are at hand.

They differ in the elements of their styles: `swirls` has thick brush strokes that follow a flow, `waves` has
flat colours with outlines and stripes, and `mosaic` has small tiles with joints. Lengths are in units of the
long side, and y points down. Strokes and tiles are 1 to 3 % of the long side, so that they are still there at
the 256 px of training.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

import cv2
import numpy as np
import torch
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from singleshot.errors import UserError

PaintingName = Literal["swirls", "waves", "mosaic"]
Array = NDArray[Any]
Color = tuple[int, ...]


def draw(name: str, size_px: int) -> Tensor:
    """The painting (3, H, W) called `name` (:data:`PaintingName`), its long side `size_px`; always the same.

    Raises:
        UserError: there is no painting of that name.
    """
    if name not in PAINTERS:
        known = ", ".join(get_args(PaintingName))
        raise UserError(
            f"no painting {name!r} is drawn here, only {known}; give a picture's path or URL for it"
        )
    return _scaled_down(PAINTERS[name](2 * size_px))


def _scaled_down(large: NDArray) -> Tensor:
    """A painting (2 H, 2 W, 3) as a picture (3, H, W); it is drawn in twice the size to smooth all edges."""
    pixels = cv2.resize(large, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    return torch.from_numpy(pixels.clip(0, 255).round() / 255).float().permute(2, 0, 1).contiguous()


# --- swirls: a night sky of eddies around stars, over hills ---

NIGHT = ("0b1640", "16307a", "1f4fae", "3f86c6", "8cc3d8", "d9e4c4")
HILLS = ("0a1f2a", "12403f", "1f5f4a", "5c7f3a", "16335e")
GLOW = ("fff6c8", "fbd84a", "f2a81d", "d9b84c", "7fb0a8", "2f6fb0")
STARS = (
    (0.83, 0.20, 0.095),
    (0.12, 0.16, 0.060),
    (0.50, 0.10, 0.045),
    (0.10, 0.48, 0.040),
    (0.66, 0.17, 0.032),
    (0.31, 0.10, 0.034),
    (0.90, 0.47, 0.045),
)
"""x, y and radius of each star."""
EDDIES = (
    (0.36, 0.34, 0.17, 1.0),
    (0.60, 0.40, 0.12, -0.8),
    (0.34, 0.58, 0.06, -0.4),
    (0.72, 0.06, 0.10, 0.7),
)
"""x, y, radius and strength of each eddy; the strength is negative where it turns the other way."""
BRUSHES = ((1200, 0.026, 0.16, 0.10), (3200, 0.018, 0.095, 0.13), (1400, 0.012, 0.06, 0.15))
"""Layers of paint: number of strokes, their width, their length, and the variation of their colours."""
BRISTLES = 5


def _swirls(size: int) -> Array:
    rng = default_rng(1)
    shape = round(0.8 * size), size
    x, y = _coordinates(shape)
    ψ: Array = 0.035 * _noise(rng, shape, 5) + 0.10 * y
    for cx, cy, radius, strength in EDDIES:
        ψ += 0.6 * strength * radius * np.exp(-(np.hypot(x - cx, y - cy) ** 2) / (0.6 * radius**2))
    dψ_dy, dψ_dx = np.gradient(ψ)
    flow = _unit(dψ_dy, -dψ_dx)  # the curl of a stream function, so that no stroke ends in a sink
    color = _ramp(NIGHT, 0.31 + 0.31 * np.sin(150 * ψ + 0.8 * _noise(rng, shape, 9)))
    for cx, cy, radius in STARS:
        distance = np.hypot(x - cx, y - cy) / radius
        halo = 1 - _smoothstep(1.0, 1.6, distance)
        color = _mix(color, _ramp(GLOW, distance / 1.5 + 0.08 * np.sin(14 * distance)), halo)
        flow = _mix(flow, _unit(y - cy, cx - x), halo)
    ridge = 0.60 + 0.05 * np.sin(5 * x + 0.4) + 0.03 * np.sin(13 * x + 1)
    land = _smoothstep(-0.005, 0.01, y - ridge)
    slope = 0.25 * np.cos(5 * x + 0.4) + 0.39 * np.cos(13 * x + 1)
    furrows = 0.5 + 0.5 * np.sin(60 * (y - ridge) + 2 * _noise(rng, shape, 6))
    color = _mix(color, _ramp(HILLS, furrows), land)
    flow = _mix(flow, _unit(np.ones_like(slope), slope), land)

    paint = np.dstack([0.75 * color, np.zeros(shape)]).astype(np.uint8)
    for count, width, length, variety in BRUSHES:
        starts = rng.uniform((0, 0), (size, shape[0]), (count, 2))
        paths = _follow(flow, starts, length * size)
        _brush(rng, paint, color, paths, width * size, variety)
    return _emboss(paint[..., :3].astype(np.float32), paint[..., 3] / 255, size / 700)


def _follow(flow: Array, starts: Array, length: float) -> Array:
    """Paths (N, points, 2) along a field of unit vectors (H, W, 2), with the starts in their middles."""
    height, width, _ = flow.shape
    steps = 8
    halves = []
    for step in (-length / 2 / steps, length / 2 / steps):
        points = [starts]
        for _ in range(steps):
            x, y = points[-1].astype(int).T
            points.append(points[-1] + step * flow[y.clip(0, height - 1), x.clip(0, width - 1)])
        halves.append(points)
    return np.stack(halves[0][:0:-1] + halves[1], axis=1)


def _brush(
    rng: Generator, paint: NDArray[np.uint8], color: Array, paths: Array, width: float, variety: float
) -> None:
    """Draw strokes into `paint` (H, W, 4), which holds the paint's colour and thickness.

    A stroke is a few bristles side by side, which differ a bit in colour and in thickness of paint.
    """
    strokes, points, _ = paths.shape
    x, y = paths[:, points // 2].astype(int).T
    colors = color[y, x] * (1 + variety * rng.standard_normal((strokes, 1)))
    colors = colors + 60 * variety * rng.standard_normal((strokes, 3))
    shades = 1 + 0.16 * rng.standard_normal((strokes, BRISTLES, 1))
    heights = 255 * rng.uniform(0.25, 1, (strokes, BRISTLES, 1))
    paints = np.concatenate([shades * colors[:, None], heights], axis=-1).clip(0, 255)
    tangents = np.gradient(paths, axis=1)
    normals = _unit(-tangents[..., 1], tangents[..., 0])
    taper = np.sin(np.pi * np.linspace(0.12, 0.97, points))[:, None] ** 0.5
    thickness = max(1, round(1.6 * width / BRISTLES))
    for path, normal, bristles in zip(paths, normals, paints, strict=True):
        for offset, bristle in zip(np.linspace(-0.5, 0.5, BRISTLES), bristles, strict=True):
            line = _fixed_point(path + offset * width * taper * normal)
            cv2.polylines(paint, [line], False, bristle.tolist(), thickness, cv2.LINE_8, SHIFT)


# --- waves: rows of breakers with foam, flat colours and ink, under a red sun ---

INK, DEEP, INDIGO, BLUE, MIST, PALE, CREAM = (
    (16, 24, 54),
    (18, 34, 78),
    (28, 58, 112),
    (62, 104, 150),
    (140, 174, 190),
    (214, 220, 204),
    (246, 240, 222),
)
SKY = ("d8c9a0", "eadfc0", "f1e6c6", "e2cfa4")
SUN, CLOUD = (206, 92, 62), (188, 166, 126)
STRIPES = (BLUE, INDIGO, MIST, PALE, DEEP, MIST)
ROWS = 7


def _waves(size: int) -> Array:
    rng = default_rng(2)
    shape = round(0.75 * size), size
    _, y = _coordinates(shape)
    print_ = _Print(_ramp(SKY, 2.2 * y).astype(np.uint8))
    print_.disc((0.70, 0.135), 0.085, SUN)
    x = np.linspace(0, 1, 200)
    for height in np.arange(0.02, 0.34, 0.028):
        phase, left, right = rng.uniform((0, -0.2, 0.5), (6, 0.5, 1.2))
        line = np.stack([left + (right - left) * x, height + 0.007 * np.sin(14 * x + phase)], axis=-1)
        print_.line(line, 0.006, CLOUD)
    for near in np.linspace(0, 1, ROWS):
        _breakers(rng, print_, near)
    image = print_.pixels.astype(np.float32)
    grain = cv2.resize(rng.standard_normal((256, 32)), shape[::-1], interpolation=cv2.INTER_CUBIC)
    return image * (1 + 0.035 * grain[..., None])


def _breakers(rng: Generator, print_: "_Print", near: float) -> None:
    """Draw one row of waves, from the farthest (`near` = 0) to the nearest (1)."""
    level, height, length = 0.26 + 0.46 * near**1.15, 0.045 + 0.08 * near, 0.17 + 0.26 * near
    turns = np.linspace(-1, 1 / length + 2, 1600) + rng.uniform()
    swell = height * (1 + 0.25 * np.sin(2.1 * turns + 9 * near))
    crest = np.cos(2 * np.pi * turns)
    xs = np.linspace(-length, 1 + 2 * length, 1600)

    def surface(depth: float) -> Array:
        """The wave's outline, or a line `depth` below it: flatter, as water moves less there."""
        a = swell * np.exp(-0.77 * depth / height)
        lean = 1.16 * (1 + 0.24 * near) * (0.5 + 0.5 * crest) ** 2  # crests run ahead, to the left, and break
        return np.stack(
            [xs - a * (lean - 0.25 * np.sin(2 * np.pi * turns)), level + depth - 0.9 * a * crest], -1
        )

    top = surface(0)
    print_.area(np.concatenate([top, [[3, 2], [-1, 2]]]), INDIGO)
    depths = np.cumsum(np.tile([0.0125, 0.0169], 14)) * (0.6 + near)
    for i, depth in enumerate(depths):
        print_.line(surface(depth), (0.0108 if i % 3 == 0 else 0.0072) * (0.7 + 1.3 * near), STRIPES[i % 6])
    print_.line(top, 0.004 + 0.004 * near, INK)
    _foam(rng, print_, top, (turns + 0.5) % 1 - 0.5, near)


def _foam(rng: Generator, print_: "_Print", top: Array, turn: Array, near: float) -> None:
    """Draw bubbles over the fronts of crests, and spray before them. `turn` is 0 where `top` has a crest.

    The ink of all bubbles is drawn before the foam of all bubbles, so that only the foam as a whole has an
    outline.
    """
    size = 0.008 + 0.018 * near
    at = np.flatnonzero((turn > -0.22) & (turn < 0.14))
    at = np.repeat(at[:: round(9 - 2 * near)], 2)
    centers = top[at] + rng.normal(0, 0.5 * size, (len(at), 2)) + (-0.5 * size, 0.2 * size)
    radii = size * rng.uniform(0.35, 1, len(at)) * np.maximum(0.4, 1 - abs(turn[at] + 0.03) / 0.22)
    for center, radius in zip(centers, radii, strict=True):
        print_.disc(center, radius + 0.0028 + 0.002 * near, INK)
    for center, radius in zip(centers, radii, strict=True):
        print_.disc(center, radius, CREAM)
    for center, radius in zip(centers, radii, strict=True):
        if radius > 0.5 * size:
            print_.disc(center + 0.25 * radius, 0.45 * radius, MIST)
            print_.disc(center + 0.12 * radius, 0.40 * radius, CREAM)
    drops = top[at[::3]] - rng.exponential((0.05, 0.03), (len(at[::3]), 2)) * (0.4 + near)
    for drop in drops:
        print_.disc(drop, rng.uniform(0.0015, 0.004) * (0.6 + near), CREAM)


class _Print:
    """Flat shapes on `pixels` (H, W, 3)."""

    def __init__(self, pixels: NDArray[np.uint8]):
        self.pixels = np.ascontiguousarray(pixels)
        self._unit = pixels.shape[1]

    def area(self, outline: Array, color: Color) -> None:
        cv2.fillPoly(self.pixels, [_fixed_point(outline * self._unit)], color, cv2.LINE_AA, SHIFT)

    def line(self, path: Array, width: float, color: Color) -> None:
        thickness = max(1, round(width * self._unit))
        points = [_fixed_point(path * self._unit)]
        cv2.polylines(self.pixels, points, False, color, thickness, cv2.LINE_AA, SHIFT)

    def disc(self, center: Array | tuple[float, float], radius: float, color: Color) -> None:
        x, y, r = _fixed_point(np.array([*center, radius]) * self._unit).tolist()
        cv2.circle(self.pixels, (x, y), r, color, cv2.FILLED, cv2.LINE_AA, SHIFT)


# --- mosaic: a sun of glass tiles, laid in rings ---

IVORY, GOLD, ORANGE, VERMILION, CRIMSON, WINE, SAND, TEAL = (
    "fdf0c4",
    "f6c34a",
    "e8912d",
    "d2552a",
    "a8281f",
    "5e1420",
    "e9b25c",
    "2f6f6a",
)
RINGS = (
    (0.050, IVORY, IVORY),
    (0.085, GOLD, GOLD),
    (0.130, VERMILION, VERMILION),
    (0.200, GOLD, CRIMSON),
    (0.235, WINE, WINE),
    (0.300, ORANGE, VERMILION),
    (0.335, IVORY, IVORY),
    (0.400, CRIMSON, CRIMSON),
    (0.430, TEAL, TEAL),
    (0.520, VERMILION, GOLD),
    (0.560, SAND, SAND),
    (9.999, WINE, CRIMSON),
)
"""Outer radius of each ring, its colour, and its colour in the twelve rays."""
GROUT = "3a2a26"
TILE = 0.027


def _mosaic(size: int) -> Array:
    rng = default_rng(3)
    shape = size, size
    sites = _sites(rng)
    pixels = np.stack(_coordinates(shape), axis=-1)
    (d1, d2), (i1, i2) = (np.moveaxis(found, -1, 0) for found in cKDTree(sites).query(pixels, k=2))
    to_joint = (d2**2 - d1**2) / (2 * np.linalg.norm(sites[i1] - sites[i2], axis=-1))  # to the bisector
    slant = (rng.normal(0, 0.1, sites.shape)[i1] * (pixels - sites[i1])).sum(axis=-1) / TILE
    specks = 0.035 * _noise(rng, shape, 150)
    tiles = _tile_colors(rng, sites)[i1] * (1 + slant + specks)[..., None]
    bevel = ((to_joint - 0.0022) / 0.006).clip(0, 1)
    tiles = _emboss(tiles, bevel, size / 900)
    grout = _palette(GROUT) * (1 + 0.12 * _noise(rng, shape, 190))[..., None]
    return _mix(grout, tiles, _smoothstep(0.0016, 0.0034, to_joint))


def _sites(rng: Generator) -> Array:
    """Centres (N, 2) of the tiles, in rings around the middle; every other ring is turned by half a tile."""
    rings = []
    for i, radius in enumerate(np.arange(0.5, 0.75 / TILE, 0.95) * TILE):
        count = max(1, round(2 * np.pi * radius / TILE))
        angle = 2 * np.pi * (np.arange(count) + 0.5 * (i % 2)) / count
        rings.append(0.5 + radius * np.stack([np.cos(angle), np.sin(angle)], axis=-1))
    sites = np.concatenate(rings)
    return sites + rng.normal(0, 0.13 * TILE, sites.shape)


def _tile_colors(rng: Generator, sites: Array) -> Array:
    """Colours (N, 3) of the tiles, by the ring and the ray that a tile is in; no two are quite the same."""
    x, y = (sites - 0.5).T
    ray = np.cos(12 * np.arctan2(y, x))
    radius = np.hypot(x, y) - 0.0175 * (1 + ray) + rng.normal(0, 0.006, len(sites))
    radii, rings, rays = zip(*RINGS, strict=True)
    ring = np.searchsorted(radii, radius)
    colors = np.where(ray[:, None] < -0.44, _palette(*rays)[ring], _palette(*rings)[ring])
    return colors * (1 + 0.13 * rng.standard_normal((len(sites), 1))) + 7 * rng.standard_normal(colors.shape)


PAINTERS: dict[str, Callable[[int], Array]] = {"swirls": _swirls, "waves": _waves, "mosaic": _mosaic}
"""Functions that return pixels (H, W, 3), from 0 to 255, for a long side in pixels."""

# --- functions for all three paintings ---

SHIFT = 4
"""Fractional bits of OpenCV's coordinates."""


def _fixed_point(points: Array) -> NDArray[np.int32]:
    return np.round(points * 2**SHIFT).astype(np.int32)


def _coordinates(shape: tuple[int, int]) -> tuple[Array, Array]:
    """x and y of each pixel, both (H, W)."""
    y, x = np.mgrid[: shape[0], : shape[1]] / max(shape)
    return x, y


def _noise(rng: Generator, shape: tuple[int, int], cells: int) -> Array:
    """Smooth noise (H, W) of about unit variance, with `cells` bumps along the width."""
    coarse = rng.standard_normal((cells * shape[0] // shape[1] + 2, cells + 2))
    return cv2.resize(coarse, shape[::-1], interpolation=cv2.INTER_CUBIC)


def _palette(*colors: str) -> Array:
    return np.array([list(bytes.fromhex(color)) for color in colors], float)


def _ramp(colors: tuple[str, ...], t: Array) -> Array:
    """:func:`_shaded` with a palette's colours in hexadecimal."""
    return _shaded(_palette(*colors), t)


def _shaded(colors: Array, t: Array) -> Array:
    """Colours (H, W, 3), interpolated between those of a palette: the first at t <= 0, the last at t >= 1."""
    stops = np.linspace(0, 1, len(colors))
    return np.stack([np.interp(t, stops, channel) for channel in colors.T], axis=-1)


def _mix(a: Array, b: Array, t: Array) -> Array:
    return a + (b - a) * t[..., None]


def _smoothstep(low: float, high: float, value: Array) -> Array:
    t = ((value - low) / (high - low)).clip(0, 1)
    return t * t * (3 - 2 * t)


def _unit(x: Array, y: Array) -> Array:
    vectors = np.stack([x, y], axis=-1)
    return vectors / (np.linalg.norm(vectors, axis=-1, keepdims=True) + 1e-9)


def _emboss(color: Array, height: Array, scale: float) -> Array:
    """Light a relief from the upper left; its heights (H, W) in [0, 1] are smoothed over `scale` pixels."""
    dy, dx = np.gradient(cv2.GaussianBlur(height, (0, 0), scale))
    light = 1.1 * scale * (dx + dy)[..., None]
    return color * (1 + light) + 64 * light.clip(0, None)
