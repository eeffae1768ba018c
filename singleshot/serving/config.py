"""Settings of a server, with their defaults."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from singleshot.errors import UserError


@dataclass(frozen=True)
class ServingConfig:
    """The processes of a server, and the limits of a request."""

    host: str = "127.0.0.1"
    """Address to listen on: `127.0.0.1` for this machine only, `0.0.0.0` for all machines that reach it."""
    port: Annotated[int, Ge(1), Le(65535)] = 8000
    root_path: str = ""
    """Path under which a proxy publishes the server, such as `/singleshot`; empty without a proxy. The proxy
    may remove it from requests or leave it there."""
    names: tuple[str, ...] = ()
    """Host names under which clients reach the server, besides `host`, `localhost`, this machine's name and
    IP addresses. Requests to other names, and WebSockets of other sites' pages, are answered 403."""
    workers: Annotated[int, Ge(1)] = 2
    """Number of processes. Each has all models, and is replaced if it dies."""
    num_cpus: Annotated[float, Gt(0)] = 1.0
    """Number of cores of each process. It computes pictures on as many threads, but at least on one."""
    timeout_s: Annotated[float, Gt(0), Le(86_400)] = 60.0
    """Time within which a request has to arrive and be answered, in seconds."""
    max_connections: Annotated[int, Ge(1)] = 1000
    """Largest number of connections of each process. Requests on further ones are answered 503."""
    max_pictures: Annotated[int, Ge(1)] = 16
    """Largest number of pictures that each process computes, one at a time, or has waiting. Further ones are
    answered 503."""
    max_body_mb: Annotated[float, Gt(0)] = 16.0
    """Largest size of a picture's file, in megabytes. Other bodies may have up to one megabyte."""
    stylize_pixels: Annotated[int, Ge(1)] = 2_100_000
    """Largest number of pixels of a picture to stylise. A network takes some 36 bytes per pixel and
    channel."""
    classify_pixels: Annotated[int, Ge(1)] = 16_000_000
    """Largest number of pixels of a picture to classify. Decoding takes 15 bytes per pixel."""

    def __post_init__(self) -> None:
        if self.root_path and (self.root_path[0] != "/" or self.root_path[-1] == "/"):
            raise UserError(f"root_path {self.root_path!r} has to begin with a slash, and end without one")
