"""The part of the configuration that is about serving. Nothing here changes a result of the pipeline."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from tasks.errors import UserError


@dataclass(frozen=True)
class ServiceConfig:
    """Replicas of one service, and how requests share a run of its graphs."""

    min_replicas: Annotated[int, Ge(1)]
    max_replicas: Annotated[int, Ge(1)]
    """More than the least are started while requests queue, and ended when they are idle."""
    num_cpus: Annotated[float, Gt(0)]
    """Cores of each replica. Several may share one; it computes on as many threads, one at least."""
    max_batch_size: Annotated[int, Ge(1)]
    batch_wait_ms: Annotated[float, Ge(0)]
    """For which the first request of a batch waits for others."""
    max_queued: Annotated[int, Ge(1)]
    """Requests that may wait for a free replica. Further ones are answered 503 at once."""

    def __post_init__(self) -> None:
        if self.min_replicas > self.max_replicas:
            raise UserError(
                f"min_replicas {self.min_replicas} is more than max_replicas {self.max_replicas}; swap them"
            )


@dataclass(frozen=True)
class ServingConfig:
    """What `python -m pipelines serve` starts, and the limits of a request. Its cores add up to two."""

    host: str = "127.0.0.1"
    """Address to listen on: `127.0.0.1` for this machine alone, `0.0.0.0` for all that reach it."""
    port: Annotated[int, Ge(1), Le(65535)] = 8000
    num_cpus: Annotated[float, Gt(0)] = 0.25
    """Cores of the process that all requests go through."""
    max_requests: Annotated[int, Ge(1)] = 128
    """In work at once, all services together: each may hold a body of the largest size in memory."""
    max_body_mb: Annotated[float, Gt(0)] = 16.0
    timeout_s: Annotated[float, Gt(0)] = 60.0
    """For a request to arrive and be answered."""
    stylize_max_pixels: Annotated[int, Ge(1)] = 2_100_000
    """Of a picture, and of a batch: a style's network takes some 36 bytes a pixel and unit of its width."""
    classify_max_pixels: Annotated[int, Ge(1)] = 16_000_000
    """Of a picture. It is scaled down at once: decoding takes 15 bytes a pixel."""
    stylize: ServiceConfig = ServiceConfig(1, 1, 1.0, 4, 10.0, 32)
    act: ServiceConfig = ServiceConfig(1, 1, 0.25, 64, 2.0, 256)
    classify: ServiceConfig = ServiceConfig(1, 1, 0.5, 16, 5.0, 64)
