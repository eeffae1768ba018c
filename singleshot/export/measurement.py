"""How networks are compared and timed on runtimes."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, MinLen


@dataclass(frozen=True)
class InputSize:
    """Size of one call's inputs."""

    batch: Annotated[int, Ge(1)]
    size_px: Annotated[int, Ge(1)] | None = None
    """Side of square pictures in pixels, for networks that take any size."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """How networks are compared and timed."""

    threads: Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1)]
    """Numbers of threads at which networks are timed; 0 stands for all cores."""
    rollout_steps: Annotated[int, Ge(1)]
    """Number of steps on whose states the outputs of a policy are compared."""
    seconds: Annotated[float, Gt(0)]
    """Time for which one network is measured on one runtime at one size, in seconds, without warm-up and
    compilation; one call at least."""
    time_limit_s: Annotated[float, Gt(0)]
    """Time after which a runtime that is still preparing one network at one size counts as failed, in
    seconds."""
