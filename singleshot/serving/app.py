"""The HTTP application: what each path answers. Errors are `{"error": …}`.

Each process has its own application: `server` has uvicorn run it on this machine, and
`python -m pipelines serve` has Ray Serve run it on a cluster.
"""

import asyncio
import contextlib
import faulthandler
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from multiprocessing import parent_process
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from fastapi_offline import FastAPIOffline
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import HTTPConnection

from singleshot.errors import UserError
from singleshot.serving import pictures
from singleshot.serving.config import ServingConfig
from singleshot.serving.guard import DUE, Bodies, Guard
from singleshot.serving.models import Model, Policy, find_models, left_out_if_broken, of_kind
from singleshot.serving.pictures import READ, PictureProcess
from singleshot.serving.watching import MAX_AGENTS, Watching

PAGE = Path(__file__).with_name("page")
SETTINGS = "SINGLESHOT_SERVE"
"""The environment variable with what :func:`create_app` serves, as JSON."""
STUCK_S = 8
"""Time after which a process whose event loop stands still ends: before the ten seconds of `docker stop`."""
STATE_BYTES = 10**6
"""Largest size of a body with a state."""
MAX_FLOAT32 = float(np.finfo(np.float32).max)
Result = TypeVar("Result")
Number = Annotated[float, Field(ge=-MAX_FLOAT32, le=MAX_FLOAT32, allow_inf_nan=False)]


class ActRequest(BaseModel):
    """A state, and who acts in it."""

    model_config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)
    state: Annotated[list[Number], Field(max_length=10_000)]
    """What the environment observes: as many numbers as the policy's input in `GET /models`."""
    policy: str | None = None
    """A name from `GET /models`; by default the first policy of the environment."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Seed of the random numbers that some policies take. Without a seed, each request has new ones."""


class ActAnswer(BaseModel):
    """The action of a policy."""

    action: list[float]
    policy: str


class StylizeQuery(BaseModel):
    """How a picture is stylised."""

    model_config = ConfigDict(extra="forbid")
    strength: float = 1.0
    stroke: float | None = None
    keep_faces: bool = False


class ClassifyQuery(BaseModel):
    """The classifier of a picture, and how the picture is prepared."""

    model_config = ConfigDict(extra="forbid")
    classifier: str | None = None
    preparation: Literal["right", "reported"] = "right"


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
PICTURE_BODY = {
    "requestBody": {"required": True, "content": {media_type: {"schema": PICTURE} for media_type in READ}}
}
PICTURE_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/png": {"schema": PICTURE}, "image/jpeg": {"schema": PICTURE}}}
}
ACT = {
    "parameters": [{"name": "environment", "in": "path", "required": True, "schema": {"type": "string"}}],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": ActRequest.model_json_schema()}},
    },
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (403, 404, 413, 415, 422, 500, 503, 504)
}


class Served:
    """What a process serves, and what its requests share."""

    def __init__(self, models: Sequence[Model], config: ServingConfig) -> None:
        self.config, self.models = config, models
        self.process, self.watching = PictureProcess(config), Watching()
        self.states = Bodies(STATE_BYTES, 64)
        self.files = Bodies(int(config.max_body_mb * 1e6), config.max_pictures)
        self.new_latents, self.threads = np.random.default_rng(), max(1, int(config.num_cpus))
        self.styles, self.classifiers = of_kind(models, "style"), of_kind(models, "classifier")
        self.policies: dict[str, dict[str, Policy]] = {}
        for name, model in of_kind(models, "policy").items():
            with left_out_if_broken():
                self.policies.setdefault(model.card.details["environment"], {})[name] = Policy(model)


async def _served(connection: HTTPConnection) -> Served:
    served: Served = connection.app.state.served
    return served


Shared = Annotated[Served, Depends(_served)]


async def _style(served: Shared, style: str) -> Model:
    return served.styles[_known("style", style, served.styles)]


async def _policies(served: Shared, environment: str) -> dict[str, Policy]:
    return served.policies[_known("environment", environment, served.policies)]


routes = APIRouter()


@routes.post(
    "/act/{environment}", summary="An agent's action in a state", response_model=ActAnswer, openapi_extra=ACT
)
async def act(request: Request) -> Response:  # what FastAPI does for arguments takes a fifth of the time
    """The action that a trained agent takes in a state of its environment, e.g. HalfCheetah.

    `GET /models` says what a policy takes and gives. The answer has the action, and who chose it.
    """
    served = await _served(request)
    there = await _policies(served, request.path_params["environment"])
    async with served.states(request) as body:
        asked = ActRequest.model_validate_json(body)
    name = next(iter(there)) if asked.policy is None else asked.policy
    policy = there[_known("policy", name, there)]
    generator = served.new_latents if asked.seed is None else np.random.default_rng(asked.seed)
    if len(asked.state) != policy.state_size:
        raise HTTPException(422, f"state: {len(asked.state)} numbers; {policy.state_size} are wanted")
    try:
        action = policy(np.asarray(asked.state, np.float32), generator)
    except UserError:  # the graph has acted when it was opened
        raise HTTPException(422, "state: too large, the action isn't finite") from None
    answer = ActAnswer(action=action.tolist(), policy=name)
    return Response(answer.model_dump_json(), media_type="application/json")


@routes.post(
    "/stylize/{style:path}", response_class=Response, openapi_extra=PICTURE_BODY, responses=PICTURE_ANSWER
)
async def stylize(
    request: Request,
    served: Shared,
    style: Annotated[Model, Depends(_style)],
    query: Annotated[StylizeQuery, Query()],
) -> Response:
    """Stylise a picture.

    `strength` 0 is the original, 1 the full style. `stroke` is the size of strokes relative to those of
    a preview of 768 px; without it, the network draws them in its own size. `keep_faces` leaves faces as
    they are. The answer is a PNG, or a JPEG if `Accept` is image/jpeg.
    """
    jpeg = request.headers.get("accept") == "image/jpeg"
    settings = served.config.stylize_pixels, served.threads, query.model_dump(), jpeg
    answer = await _drawn(request, pictures.stylize, style.path, *settings)
    return Response(answer, media_type="image/jpeg" if jpeg else "image/png")


@routes.post("/classify", openapi_extra=PICTURE_BODY)
async def classify(
    request: Request, served: Shared, query: Annotated[ClassifyQuery, Query()]
) -> ClassifyAnswer:
    """The most probable classes of a picture, among ImageNet's.

    `preparation` is how it is scaled and normalised: `right`, or with the report's mistakes.
    """
    asked = next(iter(served.classifiers), "") if query.classifier is None else query.classifier
    graph = served.classifiers[_known("classifier", asked, served.classifiers)].path
    settings = served.config.classify_pixels, served.threads, query.preparation
    found = await _drawn(request, pictures.classify, graph, *settings)
    answers = [ClassAnswer(label=label, probability=probability) for label, probability in found]
    return ClassifyAnswer(answers=answers, classifier=asked)


async def _drawn(request: Request, function: Callable[..., Result], graph: Path, *settings: Any) -> Result:
    """What a function of :mod:`pictures` makes of the request's picture."""
    served, media_type = await _served(request), request.headers.get("content-type", "missing")
    if not media_type.lower().startswith("image/"):
        known = ", ".join(READ)
        raise HTTPException(415, f"Content-Type is {media_type}; send the file itself, as one of {known}")
    async with served.files(request) as body:
        return await served.process(request.scope[DUE], function, graph, body, *settings)


@routes.websocket("/watch/{environment}")
async def watch(
    socket: WebSocket,
    served: Shared,
    there: Annotated[dict[str, Policy], Depends(_policies)],
    policies: Annotated[list[str], Query(default_factory=list)],
) -> None:
    """See :mod:`singleshot.serving.watching`."""
    if not 1 <= len(policies) <= MAX_AGENTS:
        raise HTTPException(422, f"name 1 to {MAX_AGENTS} `policies`")
    await served.watching(socket, [there[_known("policy", name, there)] for name in policies])


@routes.get("/watch/{environment}")
async def start(served: Shared, there: Annotated[dict[str, Policy], Depends(_policies)]) -> dict[str, Any]:
    """The body of an environment's agent as it is before the first step."""
    return await served.watching.start(next(iter(there.values())))


@routes.get("/paintings/{style:path}", response_class=FileResponse, responses=PICTURE_ANSWER)
async def painting(style: Annotated[Model, Depends(_style)]) -> FileResponse:
    """The painting from which a style was learned."""
    if style.painting is None or not style.painting.exists():
        raise HTTPException(404, f"the painting of {style.name} is not known")
    return FileResponse(style.painting)  # its suffix is its type


@routes.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """The page on which a person can try the networks."""
    return FileResponse(PAGE / "index.html")


@routes.get("/readyz", include_in_schema=False)
@routes.get("/healthz")
async def healthz() -> dict[str, str]:
    """Whether this process answers, which it does once its models are loaded."""
    return {"status": "alive"}


@routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics() -> Response:
    """Numbers and times of the requests to the process that answers."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


@routes.get("/models")
async def networks(served: Shared) -> dict[str, list[dict[str, Any]]]:
    """The models that are served, by kind, each with its card: origin, inputs and outputs."""
    return {
        kind: [_described(model) for model in of_kind(served.models, kind).values()]
        for kind in ("style", "policy", "classifier")
    }


def create_app() -> FastAPI:
    """The application of one of uvicorn's processes.

    The server has read all graphs before it started this process. A file that is half-written by now, as it
    may be when this process replaces another, is left out.
    """
    settings = json.loads(os.environ[SETTINGS])
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    models = find_models(Path(settings["directory"]), list(map(Path, settings["made"])), again=True)
    return build_app(models, ServingConfig(**settings["config"]), ends_if_stuck=True)


def _end_with_the_parent() -> None:
    if parent := parent_process():  # there is none if the server has but one process
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def build_app(models: Sequence[Model], config: ServingConfig, *, ends_if_stuck: bool = False) -> FastAPI:
    """The application that serves `models`, ready to answer."""
    served = Served(models, config)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        served.process.begin()
        beating = asyncio.create_task(_beat()) if ends_if_stuck else None
        yield
        served.process.close()
        if beating:
            beating.cancel()  # its timer stays: what is left to do has to end in time, too

    app = FastAPIOffline(
        title="Singleshot",
        description="Trained networks.",
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # 30 µs a request, for nobody
        generate_unique_id_function=lambda route: route.name,
        responses=REFUSALS,
        lifespan=lifespan,
    )
    app.state.served = served
    app.add_middleware(Guard, config=config)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(Exception, _our_own_mistake)
    for error in (RequestValidationError, ValidationError):
        app.add_exception_handler(error, _invalid)
    app.include_router(routes)
    app.mount("/page", StaticFiles(directory=PAGE))
    return app


async def _beat() -> None:
    """End the process, with its traceback, if the event loop stands still for :data:`STUCK_S`.

    The timer is a thread in C, which needs nothing of Python; uvicorn then starts another process.
    """
    while True:
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        await asyncio.sleep(1)


def _known(kind: str, name: str, there: Sequence[str] | dict[str, Any]) -> str:
    if name not in there:
        known = f"there are {', '.join(there)}" if there else "there is none"
        raise HTTPException(404, f"no {kind} {name!r}; {known}")
    return name


def _described(model: Model) -> dict[str, Any]:
    values = asdict(model.card)
    values["details"].pop("labels", None)  # 1,000 words
    return {"name": model.name, "painting": model.painting is not None, **values}


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _our_own_mistake(_: Request, __: Exception) -> JSONResponse:
    return JSONResponse({"error": "a mistake of this server's, which its log has"}, 500)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError | ValidationError)
    problems = [
        ": ".join([".".join(map(str, each["loc"])), each["msg"]]).lstrip(": ") for each in error.errors()
    ]
    return JSONResponse({"error": "; ".join(problems[:5])}, 422)  # a list of NaN has a problem for each
