"""The part of the configuration that is about serving, which changes no result of the pipeline."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from tasks.errors import UserError


@dataclass(frozen=True)
class ServiceConfig:
    """Replicas of one service, and how its requests are batched."""

    min_replicas: Annotated[int, Ge(1)]
    max_replicas: Annotated[int, Ge(1)]
    """Replicas beyond the minimum are started while requests queue, and ended when they are idle."""
    num_cpus: Annotated[float, Gt(0)]
    """Cores of each replica, which computes on as many threads, one at least. Replicas may share one."""
    max_batch_size: Annotated[int, Ge(1)]
    batch_wait_ms: Annotated[float, Ge(0)]
    """Time for which the first request of a batch waits for others."""
    max_queued: Annotated[int, Ge(1)]
    """Number of requests that may wait for a free replica. Further ones are answered 503 at once."""

    def __post_init__(self) -> None:
        if self.min_replicas > self.max_replicas:
            raise UserError(
                f"min_replicas {self.min_replicas} is more than max_replicas {self.max_replicas}; swap them"
            )


@dataclass(frozen=True)
class ServingConfig:
    """The services that `python -m pipelines serve` starts, and the limits of a request."""

    host: str
    """Address to listen on: `127.0.0.1` for this machine alone, `0.0.0.0` for all machines that reach it."""
    port: Annotated[int, Ge(1), Le(65535)]
    num_cpus: Annotated[float, Gt(0)]
    """Cores of the process through which all requests go."""
    max_requests: Annotated[int, Ge(1)]
    """Number of requests in work at once, in all services: each may hold a body of the largest size."""
    max_body_mb: Annotated[float, Gt(0)]
    """Size of the largest body that is taken."""
    timeout_s: Annotated[float, Gt(0)]
    """Time for a request to arrive and be answered."""
    stylize_max_pixels: Annotated[int, Ge(1)]
    """Pixels of the largest picture and batch: a style network takes some 36 bytes per pixel and channel."""
    classify_max_pixels: Annotated[int, Ge(1)]
    """Pixels of the largest picture, which is scaled down at once: decoding takes 15 bytes per pixel."""
    stylize: ServiceConfig
    act: ServiceConfig
    classify: ServiceConfig
