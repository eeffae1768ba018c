"""The part of the configuration that is about serving, which changes no result of the pipeline."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from tasks.errors import UserError


@dataclass(frozen=True)
class ServiceConfig:
    """What each process takes at once of one kind of request."""

    max_requests: Annotated[int, Ge(1)]
    """Requests in work at once, with those that wait. Further ones are answered 503 before they are read."""
    max_body_mb: Annotated[float, Gt(0)]
    """Size of the largest body that is taken."""


@dataclass(frozen=True)
class PicturesConfig(ServiceConfig):
    """What each process takes at once of requests with a picture, of which one at a time is decoded."""

    max_pixels: Annotated[int, Ge(1)]
    """Pixels of the largest picture. Decoding takes 15 bytes per pixel, and a style network some 36 per pixel
    and channel."""


@dataclass(frozen=True)
class StatesConfig(ServiceConfig):
    """What each process takes at once of requests with a state."""

    max_batch_size: Annotated[int, Ge(1)]
    """States that are computed together."""


@dataclass(frozen=True)
class ServingConfig:
    """The processes that `python -m pipelines serve` starts, and the limits of a request."""

    host: str
    """Address to listen on: `127.0.0.1` for this machine alone, `0.0.0.0` for all machines that reach it."""
    port: Annotated[int, Ge(1), Le(65535)]
    workers: Annotated[int, Ge(1)]
    """Processes, each with all models, and each replaced if it dies."""
    max_workers: Annotated[int, Ge(1)]
    """On a cluster, those beyond `workers` are started while requests queue, and ended when they are idle."""
    num_cpus: Annotated[float, Gt(0)]
    """Cores of each process, which puts a picture into a style on as many threads, one at least."""
    timeout_s: Annotated[float, Gt(0)]
    """Time for a request to arrive and be answered."""
    stylize: PicturesConfig
    act: StatesConfig
    classify: PicturesConfig

    def __post_init__(self) -> None:
        if self.workers > self.max_workers:
            raise UserError(f"workers {self.workers} is more than max_workers {self.max_workers}; swap them")
