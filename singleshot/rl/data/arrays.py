"""Arrays as users give them, in files or in scripts: their shapes, and checks before any of them is used."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from singleshot.errors import UserError

LARGEST = 1e18
"""Squares of larger numbers exceed single precision, and with them losses and standard deviations."""


def numbers(values: Any, name: str, origin: Path | str) -> NDArray:
    """An array of a file, if it holds real numbers or truth values.

    Raises:
        UserError: it holds text, complex numbers, records or nothing, or rows of different lengths.
    """
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{origin}: '{name}' holds no numbers; give a file that has them")
    return array


def flat(values: NDArray) -> NDArray:
    """One number a step: (N, 1) counts as (N,), other shapes stay as they are."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def vectors(values: NDArray, size: int | None) -> NDArray:
    """Vectors as floating-point numbers: (N,) counts as (N, 1) where vectors have this `size`, 1.

    Where the size isn't known, N integers are rather choices among several, and stay as they are. Signed
    integers would not do, because the absolute value of the lowest one is negative.
    """
    real = values.dtype.kind == "f"
    if values.ndim == 1 and (size == 1 or (size is None and real)):
        values = values[:, None]
    return values.astype(np.float64) if values.ndim == 2 and not real else values


def check_vectors(values: NDArray, name: str, origin: Path | str) -> None:
    """Raise a :class:`UserError` unless `values` are vectors (N, size), of any size."""
    if values.ndim != 2:
        raise UserError(
            f"{origin}: '{name}' is {values.dtype} of shape {values.shape}; agents take vectors, (N, size), "
            "not pictures or single choices"
        )


def check_each(values: NDArray, name: str, origin: Path | str, right: NDArray[np.bool_], fix: str) -> None:
    """Raise a :class:`UserError` at the first of `values` that isn't right."""
    wrong = np.argwhere(~right)
    if len(wrong):
        index = tuple(wrong[0].tolist())
        raise UserError(f"{origin}: '{name}' holds {values[index]} at {index}; {fix}")


def check_flags(values: NDArray, name: str, origin: Path | str) -> None:
    """Raise a :class:`UserError` at the first value other than 0 and 1."""
    fix = f"give 1 or true at ends of episodes that are {name} and else 0"
    check_each(values, name, origin, (values == 0) | (values == 1), fix)


def check_values(values: NDArray, name: str, origin: Path | str) -> None:
    """Raise a :class:`UserError` at the first NaN or infinity, or if numbers are too large to train with."""
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        index = tuple(bad[0].tolist())
        raise UserError(
            f"{origin}: '{name}' holds {values[index]} at {index} ({len(bad)} such values); "
            "remove those episodes or fetch the file again"
        )
    check_size(values, name, origin)


def check_size(values: NDArray, name: str, origin: Path | str) -> None:
    """Raise a :class:`UserError` if `values` are too large to train with in single precision."""
    size = largest(values)
    if size > LARGEST:
        raise UserError(
            f"{origin}: '{name}' reach {size:.2g}, whose square single precision can't hold; divide all "
            f"{name} by one number"
        )


def largest(values: NDArray) -> float:
    """The largest absolute value; 0 if there are no values.

    The absolute value is that of Python's numbers: NumPy's of the lowest signed integer is negative.
    """
    if not values.size:
        return 0.0
    return max(abs(float(values.min())), abs(float(values.max())))
