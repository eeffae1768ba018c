"""What services answer, beside plain results."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Served:
    """A result."""

    value: Any
    batch: int
    """Requests that were computed together with this one, itself included."""


@dataclass(frozen=True)
class Refusal:
    """Why there is no result.

    A value, no exception: Ray would log the traceback of each, and a client's mistake is no event here.
    """

    status: int
    """Of HTTP."""
    error: str
