"""The answers of services."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Served:
    """A result."""

    value: Any
    batch: int
    """Number of requests that were computed together, this one included."""


@dataclass(frozen=True)
class Refusal:
    """Why there is no result.

    It is a value rather than an exception, as Ray logs the traceback of every exception.
    """

    status: int
    """HTTP status."""
    error: str
