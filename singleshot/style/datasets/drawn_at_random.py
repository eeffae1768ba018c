"""Paintings drawn at random, as many as wanted, to learn from them what styles have in common.

Each has colours of its own and one of six manners: brush strokes along a flow, flat shapes with outlines and
stripes, tiles with joints, dots, hatching, and shapes thrown over one another. None is one of the paintings
of :mod:`singleshot.style.datasets.paintings`, whose tools they are drawn with.
"""

from collections.abc import Callable

import cv2
import numpy as np
from numpy.random import Generator, default_rng
from scipy.spatial import cKDTree
from torch import Tensor

from singleshot.style.datasets.paintings import (
    Array,
    _brush,
    _coordinates,
    _emboss,
    _follow,
    _mix,
    _noise,
    _Print,
    _scaled_down,
    _shaded,
    _smoothstep,
    _unit,
)


def draw_at_random(seed: int, size_px: int) -> Tensor:
    """Painting number `seed` (3, H, W) with a long side of `size_px`; always the same for a seed."""
    rng = default_rng((20, seed))
    shape = round(rng.uniform(0.7, 1) * 2 * size_px), 2 * size_px
    manner = MANNERS[seed % len(MANNERS)]
    return _scaled_down(manner(rng, shape, _colors(rng)).astype(np.float32))


def _colors(rng: Generator) -> Array:
    """A palette (6, 3), from dark to light: one or two hues, of random strength, and an accent."""
    hues = (rng.uniform(0, 180) + rng.choice([0, rng.uniform(20, 160)], 6) + rng.normal(0, 8, 6)) % 180
    strength = rng.uniform(20, 235) * rng.uniform(0.5, 1.2, 6)
    values = np.linspace(rng.uniform(5, 70), rng.uniform(190, 255), 6) + rng.normal(0, 12, 6)
    hsv = np.stack([hues, strength.clip(0, 255), values.clip(0, 255)], axis=-1)
    return cv2.cvtColor(hsv[None].astype(np.uint8), cv2.COLOR_HSV2RGB)[0].astype(float)


def _field(rng: Generator, shape: tuple[int, int]) -> Array:
    """Smooth values (H, W) from 0 to 1: large shapes with smaller ones in them."""
    value = sum(_noise(rng, shape, cells) / cells**0.7 for cells in (2, 4, 9, int(rng.integers(12, 30))))
    low, high = np.percentile(value, (1, 99))
    return ((value - low) / (high - low)).clip(0, 1)


def _flow(rng: Generator, shape: tuple[int, int]) -> Array:
    """Directions (H, W, 2) along the level lines of a smooth field, so that they turn in eddies."""
    field: Array = _noise(rng, shape, int(rng.integers(2, 7))) + rng.uniform(0, 9) * _coordinates(shape)[1]
    dy, dx = np.gradient(field)
    return _unit(dy, -dx)


def _strokes(rng: Generator, shape: tuple[int, int], colors: Array) -> Array:
    color, flow = _shaded(colors, _field(rng, shape)), _flow(rng, shape)
    paint = np.dstack([0.75 * color, np.zeros(shape)]).astype(np.uint8)
    width, length = rng.uniform(0.012, 0.035), rng.uniform(2, 7)
    for part in (1, 0.7, 0.45):
        count = int(min(2500, 0.8 / (part * width) ** 2 / length))
        starts = rng.uniform((0, 0), shape[::-1], (count, 2))
        paths = _follow(flow, starts, part * width * length * shape[1])
        _brush(rng, paint, color, paths, part * width * shape[1], rng.uniform(0.05, 0.25))
    return _emboss(paint[..., :3].astype(np.float32), paint[..., 3] / 255, shape[1] / 700)


def _shapes(rng: Generator, shape: tuple[int, int], colors: Array) -> Array:
    """Flat colours between level lines, some of them striped, with outlines."""
    value = _field(rng, shape)
    levels = int(rng.integers(4, 9))
    steps = (value * levels).clip(0, levels - 1).astype(int)
    picture = rng.permutation(np.resize(colors, (levels, 3)))[steps]
    stripes = np.sin(value * levels * rng.uniform(15, 50)) > rng.uniform(-0.3, 0.6)
    picture[stripes & (steps % 2 == 0)] = colors[int(rng.integers(6))]
    edge = np.zeros(shape, np.uint8)
    edge[:, 1:] |= steps[:, 1:] != steps[:, :-1]
    edge[1:] |= steps[1:] != steps[:-1]
    pen = max(2, round(rng.uniform(0.003, 0.012) * shape[1]))
    picture[cv2.dilate(edge, np.ones((pen, pen), np.uint8)) > 0] = colors[0 if rng.uniform() < 0.8 else 5]
    return picture * (1 + rng.uniform(0, 0.08) * _noise(rng, shape, 120))[..., None]


def _tiles(rng: Generator, shape: tuple[int, int], colors: Array) -> Array:
    side = rng.uniform(0.018, 0.05)
    rows, columns = (int(n / shape[1] / side) + 3 for n in shape)
    sites = side * (
        np.mgrid[:rows, :columns].reshape(2, -1).T
        + rng.normal(0, rng.uniform(0.05, 0.35), (rows * columns, 2))
    )
    sites[:, 1] += 0.5 * side * (np.arange(len(sites)) // columns % 2)
    x, y = _coordinates(shape)
    (d1, d2), (i1, _) = (
        np.moveaxis(found, -1, 0) for found in cKDTree(sites).query(np.stack([y, x], -1), k=2)
    )
    value = _field(rng, shape)
    at = (sites * shape[1]).astype(int).clip(0, np.array(shape) - 1)
    tone = _shaded(colors, value[at[:, 0], at[:, 1]]) * rng.normal(1, 0.12, (len(sites), 1))
    joint = _smoothstep(0.08 * side, 0.22 * side, d2 - d1)
    return _mix(np.broadcast_to(colors[int(rng.choice([0, 0, 5]))], (*shape, 3)), tone[i1], joint)


def _dots(rng: Generator, shape: tuple[int, int], colors: Array) -> Array:
    value = _field(rng, shape)
    color = _shaded(colors, value)
    print_ = _Print(color.astype(np.uint8))
    radius = rng.uniform(0.004, 0.013)
    count = int(min(14_000, 0.7 * shape[0] / shape[1] / radius**2))
    for x, y in rng.uniform((0, 0), (1, shape[0] / shape[1]), (count, 2)):
        row, column = int(y * shape[1] * 0.999), int(x * shape[1] * 0.999)
        near = color[row, column] if rng.uniform() < 0.6 else colors[int(rng.integers(6))]
        paint = near + rng.normal(0, 22, 3)
        print_.disc((x, y), radius * rng.uniform(0.6, 1.2), tuple(paint.clip(0, 255).tolist()))
    return print_.pixels.astype(np.float32)


def _hatching(rng: Generator, shape: tuple[int, int], colors: Array) -> Array:
    """Lines on a ground, closer and crossed where it is darker."""
    value, (x, y) = _field(rng, shape), _coordinates(shape)
    picture = np.broadcast_to(colors[5], (*shape, 3)) * (1 + 0.03 * _noise(rng, shape, 100))[..., None]
    picture = _mix(picture, _shaded(colors, value), np.full(shape, rng.uniform(0, 0.7)))
    bend = 0.02 * _noise(rng, shape, 4)
    angle, period = rng.uniform(0, np.pi), rng.uniform(0.012, 0.03)
    for k, limit in enumerate((0.75, 0.5, 0.28)):
        turn = angle + k * rng.uniform(0.6, 1.2)
        wave = np.sin(2 * np.pi * (x * np.cos(turn) + y * np.sin(turn) + bend) / period)
        line = _smoothstep(0.1, 0.5, wave) * _smoothstep(0, 0.12, limit - value)
        picture = _mix(picture, np.broadcast_to(colors[int(rng.integers(0, 2))], picture.shape), line)
    return picture


def _thrown(rng: Generator, shape: tuple[int, int], colors: Array) -> Array:
    """Triangles, discs, rings and lines over one another, on a washed ground."""
    ground = _shaded(colors, 0.4 + 0.6 * _field(rng, shape))
    print_ = _Print(ground.astype(np.uint8))
    for size in np.geomspace(0.3, 0.02, 240):
        center = rng.uniform((0, 0), (1, shape[0] / shape[1]))
        color = tuple((colors[int(rng.integers(6))] + rng.normal(0, 15, 3)).clip(0, 255).tolist())
        match int(rng.integers(4)):
            case 0:
                print_.area(center + size * rng.normal(0, 0.5, (int(rng.integers(3, 5)), 2)), color)
            case 1:
                print_.disc(center, 0.35 * size, tuple(colors[0].tolist()))
                print_.disc(center, 0.28 * size, color)
            case 2:
                t = np.linspace(0, rng.uniform(1, 7), 40)[:, None]
                arc = center + 0.5 * size * np.hstack([np.cos(t), np.sin(t)]) * rng.uniform(0.3, 1, 2)
                print_.line(arc, rng.uniform(0.002, 0.012), color)
            case _:
                ends = center + size * rng.normal(0, 0.8, (2, 2))
                print_.line(ends, rng.uniform(0.002, 0.01), tuple(colors[int(rng.choice([0, 5]))].tolist()))
    return print_.pixels.astype(np.float32)


MANNERS: tuple[Callable[[Generator, tuple[int, int], Array], Array], ...] = (
    _strokes,
    _shapes,
    _tiles,
    _dots,
    _hatching,
    _thrown,
)
"""Functions that return pixels (H, W, 3), from 0 to 255, for a size (H, W) and a palette."""
