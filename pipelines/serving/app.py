"""The HTTP application: routes, checks of requests, and errors as `{"error": …}`. It knows nothing of Ray."""

import io
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Protocol

import numpy as np
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from starlette.exceptions import HTTPException as StarletteHTTPException
from werkzeug.datastructures import MIMEAccept
from werkzeug.formparser import MultiPartParser
from werkzeug.http import parse_accept_header, parse_options_header

from pipelines.config.serving import ServingConfig
from pipelines.serving.answers import Refusal, Served
from pipelines.serving.limits import RETRY, Limits
from pipelines.serving.models import Cards
from pipelines.serving.pictures import READ, WRITTEN, Written
from tasks.deployment.onnx_model import GraphCard

MULTIPART = "multipart/form-data"
BATCH_SIZE = "X-Batch-Size"
"""Header of an answer: the number of requests that were computed together."""
PICTURE = {"type": "string", "format": "binary"}
PICTURE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {media_type: {"schema": PICTURE} for media_type in READ}
        | {MULTIPART: {"schema": {"type": "object", "properties": {"picture": PICTURE}}}},
    }
}
Inputs = Mapping[str, NDArray[np.float32]]


class Services(Protocol):
    """The services that compute answers."""

    async def stylize(
        self, style: str, body: bytes, strength: float, media_type: Written
    ) -> Served | Refusal:
        """The file of a picture in a style."""
        ...

    async def act(self, policy: str, inputs: Inputs) -> Served | Refusal:
        """A policy's action (A), a NumPy array."""
        ...

    async def classify(self, classifier: str, body: bytes) -> Served | Refusal:
        """A list of :class:`tasks.deployment.classifier.Answer`."""
        ...

    async def loading(self) -> list[str]:
        """Services that can't answer yet."""
        ...


class ActRequest(BaseModel):
    """A state, and the random draws of a policy."""

    model_config = ConfigDict(strict=True, extra="forbid")
    state: Annotated[list[FiniteFloat], Field(max_length=10_000)]
    policy: str | None = None
    """A name from `GET /models`; by default the task's first."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Seed of the latents. Without a seed and without latents, each request has new ones."""
    latents: list[FiniteFloat] | list[list[FiniteFloat]] | None = None
    """Standard normal numbers, of the shape in the policy's card, without the batch."""


class ActAnswer(BaseModel):
    """The action of a policy."""

    action: list[float]
    policy: str


class ClassAnswer(BaseModel):
    """A class that a picture may show."""

    label: str
    probability: float


class ClassifyAnswer(BaseModel):
    """The five most probable classes, the most probable first."""

    answers: list[ClassAnswer]
    classifier: str


def build_app(cards: Cards, config: ServingConfig, services: Services) -> FastAPI:
    """The application that serves the models of `cards`."""
    app = FastAPI(title="Singleshot", description="Trained networks of this pipeline, by onnxruntime.")
    app.add_middleware(
        Limits,
        max_requests=config.max_requests,
        max_body_bytes=int(config.max_body_mb * 1e6),
        timeout_s=config.timeout_s,
    )
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _internal_error)

    def known_style(style: str) -> str:
        return _known("style", style, list(cards["style"]))

    def known_task(task: str) -> str:
        return _known("task", task, sorted({card.details["task"] for card in cards["policy"].values()}))

    @app.post("/stylize/{style}", response_class=Response, openapi_extra=PICTURE_BODY)
    async def stylize(
        style: Annotated[str, Depends(known_style)],
        media_type: Annotated[Written, Depends(_accepted)],
        body: Annotated[bytes, Depends(_picture)],
        strength: Annotated[float, Query(ge=0, le=1)] = 1.0,
    ) -> Response:
        """Put a picture into a style. `strength` 0 is the original, 1 the full style."""
        served = _or_raise(await services.stylize(style, body, strength, media_type))
        return Response(served.value, media_type=media_type, headers={BATCH_SIZE: str(served.batch)})

    @app.post("/act/{task}", dependencies=[Depends(_json)])
    async def act(
        task: Annotated[str, Depends(known_task)], request: ActRequest, response: Response
    ) -> ActAnswer:
        """The action of a trained agent in a state."""
        policies = [name for name, card in cards["policy"].items() if card.details["task"] == task]
        policy = _known("policy", request.policy or policies[0], policies)
        served = _or_raise(await services.act(policy, _inputs(request, cards["policy"][policy])))
        if not np.isfinite(served.value).all():
            raise HTTPException(422, "state: too large, the action isn't finite")
        response.headers[BATCH_SIZE] = str(served.batch)
        return ActAnswer(action=served.value.tolist(), policy=policy)

    @app.post("/classify", openapi_extra=PICTURE_BODY)
    async def classify(
        response: Response, body: Annotated[bytes, Depends(_picture)], classifier: str | None = None
    ) -> ClassifyAnswer:
        """The most probable classes of a picture, among ImageNet's."""
        classifiers = list(cards["classifier"])
        name = _known("classifier", classifier or next(iter(classifiers), ""), classifiers)
        served = _or_raise(await services.classify(name, body))
        response.headers[BATCH_SIZE] = str(served.batch)
        answers = [ClassAnswer(label=each.label, probability=each.probability) for each in served.value]
        return ClassifyAnswer(answers=answers, classifier=name)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether this process answers."""
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        """Whether every service has loaded its models."""
        if loading := await services.loading():
            raise HTTPException(503, f"still loading: {', '.join(loading)}", RETRY)
        return {"status": "ready"}

    @app.get("/models")
    async def models() -> dict[str, list[dict[str, Any]]]:
        """The models that are served, by kind, each with its card: origin, inputs and outputs."""
        return {kind: [_described(name, card) for name, card in cards[kind].items()] for kind in cards}

    return app


def _known(kind: str, name: str, names: list[str]) -> str:
    if name not in names:
        there = f"there are {', '.join(names)}" if names else "there is none"
        raise HTTPException(404, f"no {kind} {name!r}; {there}")
    return name


def _or_raise(answer: Served | Refusal) -> Served:
    if isinstance(answer, Refusal):
        raise HTTPException(answer.status, answer.error, RETRY if answer.status == 503 else None)
    return answer


def _described(name: str, card: GraphCard) -> dict[str, Any]:
    values = asdict(card)
    values["details"] = {key: value for key, value in card.details.items() if key != "labels"}  # 1000
    return {"name": name, **values}


def _inputs(request: ActRequest, card: GraphCard) -> Inputs:
    """The inputs of the graph, without the batch. Latents that are not given are drawn."""
    shapes = {
        each.name: tuple(size if isinstance(size, int) else card.details[size] for size in each.shape[1:])
        for each in card.inputs
    }
    inputs = {"state": _array("state", request.state, shapes["state"])}
    if "latents" not in shapes:
        if request.latents is not None:
            raise HTTPException(422, f"latents: {card.cell} takes none")
        return inputs
    if request.latents is None:
        latents = np.random.default_rng(request.seed).standard_normal(shapes["latents"], np.float32)
        return inputs | {"latents": latents}
    if request.seed is not None:
        raise HTTPException(422, "seed: it has no effect on latents that are given; leave one out")
    return inputs | {"latents": _array("latents", request.latents, shapes["latents"])}


def _array(name: str, values: list[float] | list[list[float]], shape: tuple[int, ...]) -> NDArray[np.float32]:
    wanted = "x".join(map(str, shape))
    try:
        with np.errstate(over="ignore"):
            array = np.asarray(values, np.float32)
    except ValueError:
        raise HTTPException(422, f"{name}: rows differ in length; {wanted} numbers are wanted") from None
    if array.shape != shape:
        given = "x".join(map(str, array.shape))
        raise HTTPException(422, f"{name}: {given} numbers; {wanted} are wanted")
    if not np.isfinite(array).all():
        raise HTTPException(422, f"{name}: a number is beyond float32's range")
    return array


async def _picture(request: Request) -> bytes:
    """The file of the picture: the body, or the first file of a form."""
    media_type, options = parse_options_header(request.headers.get("content-type"))
    if media_type not in (*READ, MULTIPART):
        known = ", ".join((*READ, MULTIPART))
        raise HTTPException(415, f"Content-Type is {media_type or 'missing'}; it has to be one of {known}")
    body = await request.body()
    if media_type in READ:
        return body
    try:
        parser = MultiPartParser(max_form_parts=10)
        _, files = parser.parse(io.BytesIO(body), options.get("boundary", "").encode(), len(body))
    except Exception as error:  # ValueError, RequestEntityTooLarge, …
        raise HTTPException(422, f"the body is no whole {MULTIPART}") from error
    for file in files.values():
        return file.read()
    raise HTTPException(422, f"the {MULTIPART} has no file; send one as `picture`")


def _accepted(request: Request) -> Written:
    """The media type of the answer."""
    header = request.headers.get("accept", "*/*")
    best = parse_accept_header(header, MIMEAccept).best_match(WRITTEN)
    for media_type in WRITTEN:
        if media_type == best:
            return media_type
    raise HTTPException(406, f"Accept is {header}; answers are {' or '.join(WRITTEN)}")


async def _json(request: Request) -> None:
    media_type, _ = parse_options_header(request.headers.get("content-type"))
    if media_type != "application/json":
        raise HTTPException(415, f"Content-Type is {media_type or 'missing'}; it has to be application/json")


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in error.errors()]
    return JSONResponse({"error": "; ".join(problems[:5])}, 422)  # a list of NaN has one each


async def _internal_error(_: Request, __: Exception) -> JSONResponse:
    return JSONResponse({"error": "internal error; the server's log says more"}, 500)
