"""The application on Ray Serve: three deployments, and that of the HTTP application before them."""

import asyncio
from collections.abc import Callable
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import AutoscalingConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from pipelines.config.serving import ServiceConfig, ServingConfig
from pipelines.serving.answers import Refusal, Served
from pipelines.serving.app import Inputs, build_app
from pipelines.serving.models import Cards, Model, cards_of, contents_of
from pipelines.serving.pictures import Written
from pipelines.serving.services import Actor, Classifier, Stylizer

NAME = "singleshot"
"""Name of the application."""
DRAIN_CHECK_S = 0.1
"""Interval of the checks whether a replica that is to end has answered all. Ray's default is 2 seconds."""


@serve.ingress()
class Ingress:
    """Passes requests on to the services."""

    def __init__(
        self,
        stylizer: DeploymentHandle,
        actor: DeploymentHandle,
        classifier: DeploymentHandle,
        cards: Cards,
        config: ServingConfig,
    ) -> None:
        self.stylizer, self.actor, self.classifier = stylizer, actor, classifier
        self.cards = cards
        self.config = config

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build_app(self.cards, self.config, self)

    async def stylize(
        self, style: str, body: bytes, strength: float, media_type: Written
    ) -> Served | Refusal:
        """See :class:`pipelines.serving.app.Services`."""
        return await _call(self.stylizer, style, body, strength, media_type)

    async def act(self, policy: str, inputs: Inputs) -> Served | Refusal:
        """See :class:`pipelines.serving.app.Services`."""
        return await _call(self.actor, policy, inputs)

    async def classify(self, classifier: str, body: bytes) -> Served | Refusal:
        """See :class:`pipelines.serving.app.Services`."""
        return await _call(self.classifier, classifier, body)

    async def loading(self) -> list[str]:
        """See :class:`pipelines.serving.app.Services`."""
        # The controller is asked, since the services may be too busy to answer.
        status = await asyncio.to_thread(serve.status)
        deployments = status.applications[NAME].deployments
        return [
            name
            for name, each in deployments.items()
            if not each.replica_states.get("RUNNING")  # type: ignore[call-overload] # an enumeration of str
        ]


async def _call(service: DeploymentHandle, *arguments: Any) -> Served | Refusal:
    response = service.remote(*arguments)
    try:
        answer: Served | Refusal = await response
    except asyncio.CancelledError:  # out of time, or the client is gone
        response.cancel()  # type: ignore[no-untyped-call]
        raise
    except BackPressureError:
        return Refusal(503, "too many requests are waiting; try again")
    except (DeploymentUnavailableError, RayActorError):
        return Refusal(503, "the service is being restarted; try again")
    return answer


def application(models: list[Model], config: ServingConfig) -> serve.Application:
    """What `serve.run` takes. The graphs are in the cluster's object store, as long as this process lives."""

    def service(
        kind: Callable[..., Any], settings: ServiceConfig, contents: dict[str, bytes], *arguments: Any
    ) -> serve.Application:
        deployment = serve.deployment(
            name=kind.__name__.lower(),
            ray_actor_options={"num_cpus": settings.num_cpus},
            # One batch is computed while the next one gathers.
            max_ongoing_requests=2 * settings.max_batch_size,
            max_queued_requests=settings.max_queued,
            autoscaling_config=AutoscalingConfig(
                min_replicas=settings.min_replicas,
                max_replicas=settings.max_replicas,
                target_ongoing_requests=settings.max_batch_size,
            ),
            graceful_shutdown_wait_loop_s=DRAIN_CHECK_S,
        )(kind)
        return deployment.bind(ray.put(contents), settings, *arguments)

    ingress = serve.deployment(
        name="ingress",
        ray_actor_options={"num_cpus": config.num_cpus},
        # Ray's own limit answers in plain text and holds back health checks: ours (`Limits`) comes first.
        max_ongoing_requests=2 * config.max_requests + 100,
        graceful_shutdown_wait_loop_s=DRAIN_CHECK_S,
    )(Ingress)
    return ingress.bind(
        service(Stylizer, config.stylize, contents_of(models, "style"), config.stylize_max_pixels),
        service(Actor, config.act, contents_of(models, "policy")),
        service(Classifier, config.classify, contents_of(models, "classifier"), config.classify_max_pixels),
        cards_of(models),
        config,
    )
