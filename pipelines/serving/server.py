"""`python -m pipelines serve`: exported graphs over HTTP, from this machine or from a cluster."""

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.config.serving import ServingConfig
from pipelines.engine.execution import ExecutorConfig
from pipelines.engine.processes import ends_with_its_parents
from pipelines.engine.ray_cluster import cluster_address, ray_cluster
from pipelines.serving.models import Model, cards_of, find_models


def serve_forever(
    config: ServingConfig, executor: ExecutorConfig, directory: Path, learned: Sequence[Path] = ()
) -> None:
    """Serve the graphs below a directory, and those of learned styles, until SIGINT or SIGTERM.

    Raises:
        UserError: a graph is damaged, or the port or cluster can't be used. It is raised before any start.
    """
    models = find_models(directory, learned)
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
        UserError: the port is in use, or the cluster can't be reached, is too small, or already serves.
    """
    if cluster_address(executor) is None:
        from pipelines.serving.workers import workers

        with workers(models, config):
            yield [_url(config.host, config.port)]
        return
    with ray_cluster(executor):
        from pipelines.serving.replicas import hosts, replicas

        with replicas(models, config):
            yield [_url(host, config.port) for host in hosts(config)]


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"  # brackets: IPv6


def _usage(models: list[Model], addresses: Sequence[str]) -> str:
    cards, address = cards_of(models), addresses[0]
    counts = ", ".join(
        (
            _counted(len(cards["style"]), "style", "styles"),
            _counted(len(cards["policy"]), "policy", "policies"),
            _counted(len(cards["classifier"]), "classifier", "classifiers"),
        )
    )
    lines = [f"serving {counts} at {', '.join(addresses)}; Ctrl-C ends it"]
    lines.append(f"  {address} is a page to try the networks, {address}/docs describes the API")
    photo = "curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg'"
    for style in list(cards["style"])[:1]:
        lines.append(f"  {photo} {address}/stylize/{style} -o {style}.png")
    for card in list(cards["policy"].values())[:1]:
        state = json.dumps([0] * next(int(each.shape[1]) for each in card.inputs if each.name == "state"))
        json_type = "-H 'Content-Type: application/json'"
        lines.append(
            f"""  curl {json_type} -d '{{"state": {state}}}' {address}/act/{card.details["environment"]}"""
        )
    if cards["classifier"]:
        lines.append(f"  {photo} {address}/classify")
    return "\n".join(lines)


def _counted(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
