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
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from multiprocessing import parent_process
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from fastapi_offline import FastAPIOffline
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from uvicorn.config import STARTUP_FAILURE

from singleshot.errors import UserError
from singleshot.serving import pictures
from singleshot.serving.config import ServingConfig
from singleshot.serving.guard import DUE, Guard
from singleshot.serving.models import Model, Policy, find_models, of_kind
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
    """By which classifier a picture is classified, and how it is prepared."""

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
    status: {"model": Problem} for status in (403, 404, 413, 415, 422, 503, 504)
}


def create_app() -> FastAPI:
    """The application of one of uvicorn's processes. A user's mistake ends the server with one line."""
    settings = json.loads(os.environ[SETTINGS])
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        models = find_models(Path(settings["directory"]), list(map(Path, settings["made"])))
        return build_app(models, ServingConfig(**settings["config"]), ends_if_stuck=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(STARTUP_FAILURE)


def _end_with_the_parent() -> None:
    if parent := parent_process():  # there is none if the server has but one process
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def build_app(models: Sequence[Model], config: ServingConfig, *, ends_if_stuck: bool = False) -> FastAPI:
    """The application that serves `models`, ready to answer."""
    process, watching = PictureProcess(config), Watching()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        process.begin()
        beating = asyncio.create_task(_beat()) if ends_if_stuck else None
        yield
        process.close()
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
    app.add_middleware(Guard, config=config)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    for error in (RequestValidationError, ValidationError):
        app.add_exception_handler(error, _invalid)
    new_latents, threads = np.random.default_rng(), max(1, int(config.num_cpus))
    picture_bytes = int(config.max_body_mb * 1e6)
    policies: dict[str, dict[str, Policy]] = {}
    for name, model in of_kind(models, "policy").items():
        policies.setdefault(model.card.details["environment"], {})[name] = Policy(model)
    classifiers, styles = of_kind(models, "classifier"), of_kind(models, "style")

    async def style_of(style: str) -> Model:
        return styles[_known("style", style, styles)]

    async def policies_of(environment: str) -> dict[str, Policy]:
        return policies[_known("environment", environment, policies)]

    @app.post(
        "/act/{environment}",
        summary="An agent's action in a state",
        response_model=ActAnswer,
        openapi_extra=ACT,
        max_body_size=STATE_BYTES,
    )
    async def act(request: Request) -> Response:  # what FastAPI does for arguments takes a fifth of the time
        """The action that a trained agent takes in a state of its environment, e.g. HalfCheetah.

        `GET /models` says what a policy takes and gives. The answer has the action, and who chose it.
        """
        there = await policies_of(request.path_params["environment"])
        asked = ActRequest.model_validate_json(await request.body())
        name = next(iter(there)) if asked.policy is None else asked.policy
        policy = there[_known("policy", name, there)]
        generator = new_latents if asked.seed is None else np.random.default_rng(asked.seed)
        if len(asked.state) != policy.state_size:
            raise HTTPException(422, f"state: {len(asked.state)} numbers; {policy.state_size} are wanted")
        action = policy(np.asarray(asked.state, np.float32), generator)
        if not np.isfinite(action).all():
            raise HTTPException(422, "state: too large, the action isn't finite")
        answer = ActAnswer(action=action.tolist(), policy=name)
        return Response(answer.model_dump_json(), media_type="application/json")

    app.router.routes.insert(0, app.router.routes.pop())  # it is looked for first

    @app.post(
        "/stylize/{style:path}",
        response_class=Response,
        openapi_extra=PICTURE_BODY,
        max_body_size=picture_bytes,
        responses=PICTURE_ANSWER,
    )
    async def stylize(
        request: Request,
        style: Annotated[Model, Depends(style_of)],
        query: Annotated[StylizeQuery, Query()],
    ) -> Response:
        """Stylise a picture.

        `strength` 0 is the original, 1 the full style. `stroke` is the size of strokes relative to those of
        a preview of 768 px; without it, the network draws them in its own size. `keep_faces` leaves faces as
        they are. The answer is a PNG, or a JPEG if `Accept` is image/jpeg.
        """
        jpeg = request.headers.get("accept") == "image/jpeg"
        given = style.path, await _picture(request), config.stylize_pixels, threads, query.model_dump(), jpeg
        answer = await process(request.scope[DUE], pictures.stylize, *given)
        return Response(answer, media_type="image/jpeg" if jpeg else "image/png")

    @app.post("/classify", openapi_extra=PICTURE_BODY, max_body_size=picture_bytes)
    async def classify(request: Request, query: Annotated[ClassifyQuery, Query()]) -> ClassifyAnswer:
        """The most probable classes of a picture, among ImageNet's.

        `preparation` is how it is scaled and normalised: `right`, or with the report's mistakes.
        """
        asked = next(iter(classifiers), "") if query.classifier is None else query.classifier
        graph = classifiers[_known("classifier", asked, classifiers)].path
        given = graph, await _picture(request), config.classify_pixels, threads, query.preparation
        found = await process(request.scope[DUE], pictures.classify, *given)
        answers = [ClassAnswer(label=label, probability=probability) for label, probability in found]
        return ClassifyAnswer(answers=answers, classifier=asked)

    @app.websocket("/watch/{environment}")
    async def watch(
        socket: WebSocket,
        there: Annotated[dict[str, Policy], Depends(policies_of)],
        policies: Annotated[list[str], Query(default_factory=list)],
    ) -> None:
        """See :mod:`singleshot.serving.watching`."""
        if not 1 <= len(policies) <= MAX_AGENTS:
            raise HTTPException(422, f"name 1 to {MAX_AGENTS} `policies`")
        await watching(socket, [there[_known("policy", name, there)] for name in policies])

    @app.get("/watch/{environment}")
    async def start(there: Annotated[dict[str, Policy], Depends(policies_of)]) -> dict[str, Any]:
        """The body of an environment's agent as it is before the first step."""
        return await watching.start(next(iter(there.values())))

    @app.get("/paintings/{style:path}", response_class=FileResponse, responses=PICTURE_ANSWER)
    async def painting(style: Annotated[Model, Depends(style_of)]) -> FileResponse:
        """The painting from which a style was learned."""
        if style.painting is None:
            raise HTTPException(404, f"the painting of {style.name} is not known")
        return FileResponse(style.painting)  # its suffix is its type

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        """The page on which a person can try the networks."""
        return FileResponse(PAGE / "index.html")

    @app.get("/readyz", include_in_schema=False)
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether this process answers, which it does once its models are loaded."""
        return {"status": "alive"}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Numbers and times of the requests to the process that answers."""
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/models")
    async def networks() -> dict[str, list[dict[str, Any]]]:
        """The models that are served, by kind, each with its card: origin, inputs and outputs."""
        return {
            kind: [_described(model) for model in of_kind(models, kind).values()]
            for kind in ("style", "policy", "classifier")
        }

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


async def _picture(request: Request) -> bytes:
    media_type = request.headers.get("content-type", "missing")
    if not media_type.lower().startswith("image/"):
        known = ", ".join(READ)
        raise HTTPException(415, f"Content-Type is {media_type}; send the file itself, as one of {known}")
    return await request.body()


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError | ValidationError)
    problems = [
        ": ".join([".".join(map(str, each["loc"])), each["msg"]]).lstrip(": ") for each in error.errors()
    ]
    return JSONResponse({"error": "; ".join(problems[:5])}, 422)  # a list of NaN has a problem for each
