"""`python -m pipelines serve`: networks over HTTP with the settings of params.yaml, also from a cluster.

There, each replica of Ray Serve has the whole application.
"""

import contextlib
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import ray
from fastapi import FastAPI
from ray import serve

from pipelines.config.params import load_config
from pipelines.engine.on_ray import cluster_address, ray_cluster
from pipelines.stages import GRAPHS
from singleshot.errors import UserError
from singleshot.serving.app import build_app
from singleshot.serving.config import ServingConfig
from singleshot.serving.models import Model, find_models, made_graphs
from singleshot.serving.server import LAST_ANSWERS_S, serve_forever, until_interrupted, url, usage

NAME = "singleshot"
"""Name of the application."""


def serve_networks() -> None:
    """Serve the pipeline's networks, the shipped ones and those of `learn-style` until SIGINT or SIGTERM.

    Raises:
        UserError: a graph is damaged, or the port or cluster can't be used, or no process can start.
    """
    config = load_config()
    if cluster_address(config.executor) is None:
        serve_forever(config.serving, GRAPHS, made_graphs())
        return
    with until_interrupted(), ray_cluster(config.executor):
        models = find_models(GRAPHS, made_graphs())
        with replicas(models, config.serving):
            print(
                usage(models, [url(host, config.serving.port) for host in hosts(config.serving)]), flush=True
            )
            threading.Event().wait()


@contextlib.contextmanager
def replicas(models: Sequence[Model], config: ServingConfig) -> Iterator[None]:
    """Serve models within the context, on the joined cluster; the context begins when replicas answer.

    Raises:
        UserError: the cluster is too small, or already serves an application.
    """
    _preflight(config)
    serve.start(
        proxy_location="EveryNode",
        http_options={"host": config.host, "port": config.port},
        # Ray Serve's warnings concern its internals, e.g. that a new deployment has no autoscaling to end.
        logging_config={"log_level": "ERROR"},
    )
    deployment = serve.deployment(
        name="application",
        ray_actor_options={"num_cpus": config.num_cpus},
        # Ray's own limit answers in plain text and holds back health checks, so ours is lower.
        max_ongoing_requests=2 * config.max_connections,
        num_replicas=config.workers,
        graceful_shutdown_wait_loop_s=0.1,  # between checks whether all is answered; by default two seconds
        graceful_shutdown_timeout_s=LAST_ANSWERS_S,
    )(_Replica)
    contents = [
        (model.card, model.path.read_bytes(), model.painting.read_bytes() if model.painting else None)
        for model in models
    ]
    try:
        serve.run(
            deployment.bind(ray.put(contents), config),
            name=NAME,
            logging_config={"log_level": "WARNING", "enable_access_log": False},
        )
        yield
    finally:
        serve.delete(NAME)
        serve.shutdown()


@serve.ingress()
class _Replica:
    """The application; its graphs are in the cluster's object store as long as the driver lives."""

    def __init__(self, contents: ray.ObjectRef, config: ServingConfig) -> None:
        self._directory = tempfile.TemporaryDirectory()
        models = []
        for i, (card, graph, painting) in enumerate(ray.get(contents)):
            path, painted = (Path(self._directory.name, f"{i}.{kind}") for kind in ("onnx", "png"))
            path.write_bytes(graph)
            if painting:
                painted.write_bytes(painting)
            models.append(Model(card, path, painted if painting else None))
        self.application = build_app(models, config)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self.application


def _preflight(config: ServingConfig) -> None:
    """Raise UserError if too few replicas fit on the nodes: Ray would wait for room for ever."""
    if applications := serve.status().applications:
        raise UserError(f"the cluster serves {', '.join(applications)}; end that with `serve shutdown`")
    cores = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    room = sum(int((each + 5e-5) // config.num_cpus) for each in cores)  # half of Ray's unit: 2 // 0.1 is 19
    if config.workers > room:
        raise UserError(
            f"serving asks for {config.workers} times {config.num_cpus:g} cores, and Ray's nodes have room "
            f"for {room} of these; lower serving.workers or num_cpus"
        )


def hosts(config: ServingConfig) -> list[str]:
    """The hosts of the proxies."""
    if config.host not in {"0.0.0.0", "::"}:
        return [config.host]
    proxies = serve.status().proxies
    return [node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] in proxies]
