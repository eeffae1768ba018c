"""The HTTP application: routes, checks of requests, and errors as `{"error": …}`.

Each process has its own application: `workers` runs processes on one machine, `replicas` on a cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from fastapi_offline import FastAPIOffline
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import request_response

from pipelines.config.serving import ServingConfig
from pipelines.serving.bodies import JSON, MULTIPART, accepted, read_json, read_picture
from pipelines.serving.limits import Limits
from pipelines.serving.metrics import RequestTimer, exposition
from pipelines.serving.models import Model, cards_of, pruner_of
from pipelines.serving.pictures import READ, WRITTEN, Written
from pipelines.serving.services import Decision, Services
from pipelines.serving.watching import MAX_AGENTS, Watching
from singleshot.export.classifier import Preparation
from singleshot.export.onnx_model import GraphCard, unbatched_shapes
from singleshot.style.apply.stylize import STRENGTHS, STROKES, StylizeSettings

PAGE = Path(__file__).with_name("page")
BATCH_SIZE = "X-Batch-Size"
"""Header of an answer: the number of requests that were computed together."""
MAX_FLOAT32 = float(np.finfo(np.float32).max)
Number = Annotated[float, Field(ge=-MAX_FLOAT32, le=MAX_FLOAT32, allow_inf_nan=False)]
Inputs = Mapping[str, NDArray[np.float32]]


class ActRequest(BaseModel):
    """A state, with the random numbers of a policy."""

    model_config = ConfigDict(strict=True, extra="forbid")
    state: Annotated[list[Number], Field(max_length=10_000)]
    policy: str | None = None
    """A name from `GET /models`; by default the first policy of the environment."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Seed of the latents. Without a seed and without latents, each request has new ones."""
    latents: list[Number] | list[list[Number]] | None = None
    """Standard normal numbers, of the shape in the policy's card, without the batch."""


class ActAnswer(BaseModel):
    """The action of a policy."""

    action: list[float]
    policy: str


class StylizeQuery(BaseModel):
    """How a picture is stylised."""

    model_config = ConfigDict(extra="forbid")
    strength: Annotated[float, Field(ge=STRENGTHS[0], le=STRENGTHS[1])] = 1.0
    stroke: Annotated[float, Field(ge=STROKES[0], le=STROKES[1])] | None = None
    keep_faces: bool = False


class ClassifyQuery(BaseModel):
    """By which classifier a picture is classified, and how it is prepared."""

    model_config = ConfigDict(extra="forbid")
    classifier: str | None = None
    preparation: Preparation = "right"


class ClassAnswer(BaseModel):
    """A class that a picture may show."""

    label: str
    probability: float


class ClassifyAnswer(BaseModel):
    """The five most probable classes, the most probable first."""

    answers: list[ClassAnswer]
    classifier: str


class Problem(BaseModel):
    """What is wrong with a request."""

    error: str


PICTURE = {"type": "string", "format": "binary"}
PICTURE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {media_type: {"schema": PICTURE} for media_type in READ}
        | {MULTIPART: {"schema": {"type": "object", "properties": {"picture": PICTURE}}}},
    }
}
ACT_REQUEST: dict[str, Any] = {
    "parameters": [{"name": "environment", "in": "path", "required": True, "schema": {"type": "string"}}],
    "requestBody": {"required": True, "content": {JSON: {"schema": ActRequest.model_json_schema()}}},
}
REFUSALS = {
    404: "There is no network of that name.",
    406: "The answer can't be in a media type of `Accept`.",
    408: "The request did not arrive in time.",
    413: "The body or the picture is too large.",
    415: "The body's media type or encoding is unknown.",
    422: "The request is wrong, or its data are damaged.",
    500: "The server failed; its log says more.",
    503: "Too many requests are in progress.",
    504: "The answer was not computed in time.",
}


def _refusals(*others: int) -> dict[int | str, dict[str, Any]]:
    """The statuses of errors, as OpenAPI describes them: all but `others`."""
    return {
        status: {"description": about, "model": Problem}
        for status, about in REFUSALS.items()
        if status not in others
    }


def build_app(models: Sequence[Model], config: ServingConfig) -> FastAPI:
    """The application that serves `models`, ready to answer."""
    cards, services = cards_of(models), Services(models, config)
    watching = Watching(services)
    app = FastAPIOffline(
        title="Singleshot",
        description="Trained networks of this pipeline.",
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # 30 µs a request, for nobody
        generate_unique_id_function=lambda route: route.name,
    )
    app.root_path = config.root_path  # uvicorn's own setting is for proxies that remove the path alone
    app.add_middleware(RequestTimer)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _internal_error)
    new_latents = np.random.default_rng()
    policies: dict[str, dict[str, GraphCard]] = {}
    for name, card in cards["policy"].items():
        policies.setdefault(card.details["environment"], {})[name] = card
    shapes = {name: unbatched_shapes(card.inputs, card.details) for name, card in cards["policy"].items()}

    # Files of exports are named `swirls-snip-0.98`, cells and models `swirls/snip-0.98`.
    styles = {name.replace("/", "-"): name for name in cards["style"]}
    paintings = {model.name: model.painting for model in models if model.painting}

    async def known_style(style: str) -> str:
        return styles.get(style) or _known("style", style, list(cards["style"]))

    async def policies_of(environment: str) -> dict[str, GraphCard]:
        return policies[_known("environment", environment, sorted(policies))]

    async def picture_to_stylize(request: Request) -> bytes:
        return await read_picture(request, config.stylize)

    async def picture_to_classify(request: Request) -> bytes:
        return await read_picture(request, config.classify)

    @app.post(
        "/act/{environment}",
        tags=["agents"],
        summary="Act",
        response_model=ActAnswer,
        openapi_extra=ACT_REQUEST,
        responses=_refusals(406),
    )
    async def act(request: Request) -> Response:
        """The action of a trained agent in a state."""
        there = await policies_of(request.path_params["environment"])
        try:
            asked = await read_json(request, config.act, ActRequest)
        except ValidationError as error:
            raise HTTPException(422, _problems(error.errors())) from None
        policy = next(iter(there)) if asked.policy is None else _known("policy", asked.policy, list(there))
        generator = new_latents if asked.seed is None else np.random.default_rng(asked.seed)
        served = await services.act(Decision(policy, _inputs(asked, policy, shapes[policy], generator)))
        if not np.isfinite(served.value).all():
            raise HTTPException(422, "state: too large, the action isn't finite")
        answer = ActAnswer(action=served.value.tolist(), policy=policy)
        return Response(answer.model_dump_json(), headers={BATCH_SIZE: str(served.batch)}, media_type=JSON)

    @app.post(
        "/stylize/{style:path}",
        tags=["pictures"],
        summary="Stylise a picture",
        response_class=Response,
        openapi_extra=PICTURE_BODY,
        responses=_refusals()
        | {
            200: {
                "description": "The stylised picture.",
                "content": {media_type: {"schema": PICTURE} for media_type in WRITTEN},
            }
        },
    )
    async def stylize(
        style: Annotated[str, Depends(known_style)],
        media_type: Annotated[Written, Depends(accepted)],
        body: Annotated[bytes, Depends(picture_to_stylize)],
        query: Annotated[StylizeQuery, Query()],
    ) -> Response:
        """Stylise a picture.

        `strength` 0 is the original, 1 the full style. `stroke` is the size of strokes relative to those of
        a preview of 768 px; without it, the network draws them in its own size. `keep_faces` leaves faces as
        they are.
        """
        settings = StylizeSettings(query.strength, stroke=query.stroke, keep_faces=query.keep_faces)
        return Response(await services.stylize(style, body, settings, media_type), media_type=media_type)

    @app.post(
        "/classify",
        tags=["pictures"],
        summary="Classify a picture",
        openapi_extra=PICTURE_BODY,
        responses=_refusals(406),
    )
    async def classify(
        body: Annotated[bytes, Depends(picture_to_classify)],
        query: Annotated[ClassifyQuery, Query()],
    ) -> ClassifyAnswer:
        """The most probable classes of a picture, among ImageNet's.

        `preparation` is how it is scaled and normalised: `right`, or with the report's mistakes.
        """
        there = list(cards["classifier"])
        asked = (there or [""])[0] if query.classifier is None else query.classifier
        name = _known("classifier", asked, there)
        found = await services.classify(name, body, query.preparation)
        answers = [ClassAnswer(label=each.label, probability=each.probability) for each in found]
        return ClassifyAnswer(answers=answers, classifier=name)

    @app.websocket("/watch/{environment}")
    async def watch(
        socket: WebSocket,
        there: Annotated[dict[str, GraphCard], Depends(policies_of)],
        policies: Annotated[list[str], Query(default_factory=list)],
    ) -> None:
        """See :mod:`pipelines.serving.watching`."""
        if not 1 <= len(policies) <= MAX_AGENTS:
            raise HTTPException(422, f"name 1 to {MAX_AGENTS} `policies`")
        cards = [there[_known("policy", name, list(there))] for name in policies]
        await watching.start(cards[0])
        await watching(socket, policies, cards)

    @app.get(
        "/watch/{environment}",
        tags=["agents"],
        summary="The agent's body at the start",
        responses=_refusals(406, 408, 413, 415, 422, 503, 504),
    )
    async def start(environment: str) -> dict[str, Any]:
        """The body of an environment's agent as it is before the first step."""
        return await watching.start(next(iter((await policies_of(environment)).values())))

    @app.get(
        "/paintings/{style:path}",
        tags=["pictures"],
        summary="The painting of a style",
        response_class=Response,
        responses=_refusals(406, 408, 413, 415, 422, 503, 504)
        | {200: {"content": {"image/jpeg": {"schema": PICTURE}}}},
    )
    async def painting(style: Annotated[str, Depends(known_style)]) -> Response:
        """The painting from which a style was learned, in a small size."""
        if style not in paintings:
            raise HTTPException(404, f"the painting of {style} is not known")
        return Response(paintings[style], media_type="image/jpeg")

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        """The page on which a person can try the networks."""
        return FileResponse(PAGE / "index.html")

    @app.get("/healthz", tags=["server"], summary="Alive")
    async def healthz() -> dict[str, str]:
        """Whether this process answers."""
        return {"status": "alive"}

    @app.get("/readyz", tags=["server"], summary="Ready")
    async def readyz() -> dict[str, str]:
        """Whether the models are loaded, which they always are before the process answers."""
        return {"status": "ready"}

    @app.get(
        "/metrics",
        tags=["server"],
        summary="Metrics for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def metrics() -> Response:
        """Numbers and times of requests, for Prometheus."""
        return exposition()

    @app.get("/models", tags=["server"], summary="The networks and their cards")
    async def described() -> dict[str, list[dict[str, Any]]]:
        """The models that are served, by kind, each with its card: origin, inputs and outputs."""
        return {
            kind: [_described(name, card) | {"painting": name in paintings} for name, card in named.items()]
            for kind, named in cards.items()
        }

    app.mount("/page", StaticFiles(directory=PAGE))
    app.openapi()  # made and kept before HEAD is added, which it need not describe: HTTP does
    limits = {"act": config.act, "stylize": config.stylize, "classify": config.classify}
    app.router.routes.sort(key=lambda route: getattr(route, "name", "") != "act")  # it is looked for first
    for route in app.routes:
        if not isinstance(route, APIRoute) or route.methods is None:
            continue
        if "GET" in route.methods:
            route.methods.add("HEAD")
        if route.name in limits:
            # `act` reads its request itself. FastAPI's preparations would take 30 of the 200 µs of a request.
            handler = request_response(act) if route.name == "act" else route.app
            route.app = Limits(handler, limits[route.name], config.timeout_s)
    return app


def _known(kind: str, name: str, names: list[str]) -> str:
    if name not in names:
        there = f"there are {', '.join(names)}" if names else "there is none"
        raise HTTPException(404, f"no {kind} {name!r}; {there}")
    return name


def _described(name: str, card: GraphCard) -> dict[str, Any]:
    values = asdict(card)
    values["details"] = {key: value for key, value in card.details.items() if key != "labels"}  # 1,000 words
    return {"name": name, "pruner": pruner_of(card), **values}


def _inputs(
    request: ActRequest, policy: str, shapes: Mapping[str, tuple[int, ...]], generator: np.random.Generator
) -> Inputs:
    """The inputs of a policy's graph, without the batch. Latents that are not given are drawn."""
    inputs = {"state": _array("state", request.state, shapes["state"])}
    if "latents" not in shapes:
        if request.latents is not None:
            raise HTTPException(422, f"latents: {policy} takes none")
        return inputs
    if request.latents is None:
        latents = generator.standard_normal(shapes["latents"], np.float32)
        return inputs | {"latents": latents}
    if request.seed is not None:
        raise HTTPException(422, "seed: it has no effect on latents that are given; leave one out")
    return inputs | {"latents": _array("latents", request.latents, shapes["latents"])}


def _array(name: str, values: list[float] | list[list[float]], shape: tuple[int, ...]) -> NDArray[np.float32]:
    wanted = "x".join(map(str, shape))
    try:
        array = np.asarray(values, np.float32)
    except ValueError:
        raise HTTPException(422, f"{name}: rows differ in length; {wanted} numbers are wanted") from None
    if array.shape != shape:
        given = "x".join(map(str, array.shape))
        raise HTTPException(422, f"{name}: {given} numbers; {wanted} are wanted")
    return array


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = [each | {"loc": each["loc"][1:]} for each in error.errors()]  # without "query" or "path"
    return JSONResponse({"error": _problems(errors)}, 422)


def _problems(errors: Sequence[Any]) -> str:
    problems = [": ".join([".".join(map(str, each["loc"])), each["msg"]]).lstrip(": ") for each in errors]
    return "; ".join(problems[:5])  # a list of NaN has a problem for each


async def _internal_error(_: Request, __: Exception) -> JSONResponse:
    return JSONResponse({"error": "internal error; the server's log says more"}, 500)
