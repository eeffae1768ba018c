"""`python -m pipelines serve`: exported graphs over HTTP, on this machine's Ray or on a cluster."""

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.config.serving import ServingConfig
from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.lifecycle import ends_with_its_parents
from pipelines.engine.ray_cluster import cluster_address, ray_cluster
from pipelines.serving.models import Model, cards_of, find_models
from tasks.errors import UserError


def serve_forever(config: ServingConfig, executor: ExecutorConfig, directory: Path) -> None:
    """Serve the graphs below a directory until SIGINT or SIGTERM.

    Raises:
        UserError: before anything starts, where a graph is damaged, or the port or the cluster can't be had.
    """
    models = find_models(directory)
    with (
        contextlib.suppress(KeyboardInterrupt),
        ends_with_its_parents(),
        running(models, config, executor) as addresses,
    ):
        print(_usage(models, addresses), flush=True)
        threading.Event().wait()
    print("ended", flush=True)


@contextlib.contextmanager
def running(models: list[Model], config: ServingConfig, executor: ExecutorConfig) -> Iterator[Sequence[str]]:
    """Serve models within the context; yields the addresses when all are loaded.

    Raises:
        UserError: the port is in use, or the cluster can't be reached, is too small, or serves already.
    """
    own = cluster_address(executor) is None
    if own:
        _check_free(config.host, config.port)
    with ray_cluster(executor):
        from ray import serve

        from pipelines.serving.ingress import NAME, application

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        _preflight(config)
        serve.start(
            proxy_location="HeadOnly" if own else "EveryNode",
            http_options={"host": config.host, "port": config.port},
            # Its warnings concern its own workings, e.g. that a new deployment has no autoscaling to end.
            logging_config={"log_level": "ERROR"},
        )
        try:
            quiet = {"log_level": "WARNING", "enable_access_log": False}
            serve.run(application(models, config), name=NAME, logging_config=quiet)
            yield _addresses(config)
        finally:
            serve.delete(NAME)
            if not own:  # our own Ray ends as a whole, and its controller then without a warning
                serve.shutdown()


def _check_free(host: str, port: int) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        raise UserError(f"{host}:{port}: {error.strerror}; give another --host or --port") from error


def _preflight(config: ServingConfig) -> None:
    """Raise UserError if the cluster has too few cores: Ray would wait for them for ever."""
    import ray
    from ray import serve

    if applications := serve.status().applications:
        raise UserError(
            f"this Ray cluster serves already ({', '.join(applications)}); end that with `serve shutdown`"
        )
    services = config.stylize, config.act, config.classify
    wanted = config.num_cpus + sum(service.min_replicas * service.num_cpus for service in services)
    there = ray.cluster_resources().get("CPU", 0)
    if wanted > there:
        raise UserError(
            f"serving asks for {wanted:g} cores, and there are {there:g}; lower serving.num_cpus, or "
            "num_cpus or min_replicas of serving.stylize, act and classify"
        )


def _addresses(config: ServingConfig) -> list[str]:
    """The addresses of the proxies."""
    import ray
    from ray import serve

    if config.host not in {"0.0.0.0", "::"}:
        return [f"http://{config.host}:{config.port}"]
    proxies = serve.status().proxies
    nodes = [node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] in proxies]
    return [f"http://{node}:{config.port}" for node in nodes]


def _usage(models: list[Model], addresses: Sequence[str]) -> str:
    cards, address = cards_of(models), addresses[0]
    counts = f"{len(cards['style'])} styles, {len(cards['policy'])} policies, "
    counts += f"{len(cards['classifier'])} classifiers"
    lines = [f"serving {counts} at {', '.join(addresses)}; Ctrl-C ends it", f"  {address}/docs"]
    photo = "curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg'"
    for style in list(cards["style"])[:1]:
        lines.append(f"  {photo} {address}/stylize/{style} -o {style}.png")
    for card in list(cards["policy"].values())[:1]:
        state = json.dumps([0] * next(int(each.shape[1]) for each in card.inputs if each.name == "state"))
        json_type = "-H 'Content-Type: application/json'"
        lines.append(f"""  curl {json_type} -d '{{"state": {state}}}' {address}/act/{card.details["task"]}""")
    if cards["classifier"]:
        lines.append(f"  {photo} {address}/classify")
    return "\n".join(lines)
