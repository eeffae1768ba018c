"""The HTTP application: routes, checks of requests, and errors as `{"error": …}`.

Each process has its own application: `workers` runs processes on one machine, `replicas` on a cluster.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from werkzeug.datastructures import MIMEAccept
from werkzeug.formparser import MultiPartParser
from werkzeug.http import parse_accept_header, parse_options_header

from pipelines.config.serving import ServingConfig
from pipelines.serving.limits import Limits
from pipelines.serving.models import Model, cards_of
from pipelines.serving.pictures import READ, WRITTEN, Written
from pipelines.serving.services import Decision, Services
from pipelines.serving.watching import MAX_AGENTS, Watching
from singleshot.export.classifier import Preparation
from singleshot.export.onnx_model import GraphCard, unbatched_shapes

PAGE = Path(__file__).with_name("page") / "index.html"
JSON = "application/json"
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


class ActRequest(BaseModel):
    """A state, with the random numbers of a policy."""

    model_config = ConfigDict(strict=True, extra="forbid")
    state: Annotated[list[FiniteFloat], Field(max_length=10_000)]
    policy: str | None = None
    """A name from `GET /models`; by default the first policy of the task."""
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


STATE_BODY = {
    "requestBody": {"required": True, "content": {JSON: {"schema": ActRequest.model_json_schema()}}}
}


def build_app(models: Sequence[Model], config: ServingConfig) -> FastAPI:
    """The application that serves `models`, ready to answer."""
    cards, services = cards_of(models), Services(models, config)
    watching = Watching(services)
    app = FastAPI(title="Singleshot", description="Trained networks of this pipeline.")
    app.add_middleware(Limits, config=config)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _internal_error)

    async def known_style(style: str) -> str:
        return _known("style", style, list(cards["style"]))

    async def policies_of(task: str) -> dict[str, GraphCard]:
        policies = cards["policy"]
        _known("task", task, sorted({card.details["task"] for card in policies.values()}))
        return {name: card for name, card in policies.items() if card.details["task"] == task}

    @app.post("/stylize/{style}", response_class=Response, openapi_extra=PICTURE_BODY)
    async def stylize(
        style: Annotated[str, Depends(known_style)],
        media_type: Annotated[Written, Depends(_accepted)],
        body: Annotated[bytes, Depends(_picture)],
        strength: Annotated[float, Query(ge=0, le=1)] = 1.0,
    ) -> Response:
        """Stylise a picture. `strength` 0 is the original, 1 the full style."""
        return Response(await services.stylize(style, body, strength, media_type), media_type=media_type)

    @app.post("/act/{task}", response_model=ActAnswer, openapi_extra=STATE_BODY)
    async def act(task: str, request: Request) -> Response:
        """The action of a trained agent in a state."""
        policies = await policies_of(task)
        asked = await _asked(request)
        policy = _known("policy", asked.policy or next(iter(policies)), list(policies))
        served = await services.act(Decision(policy, _inputs(asked, policies[policy])))
        if not np.isfinite(served.value).all():
            raise HTTPException(422, "state: too large, the action isn't finite")
        answer = ActAnswer(action=served.value.tolist(), policy=policy)
        return Response(answer.model_dump_json(), headers={BATCH_SIZE: str(served.batch)}, media_type=JSON)

    @app.post("/classify", openapi_extra=PICTURE_BODY)
    async def classify(
        body: Annotated[bytes, Depends(_picture)],
        classifier: str | None = None,
        preparation: Preparation = "right",
    ) -> ClassifyAnswer:
        """The most probable classes of a picture, among ImageNet's.

        `preparation` is how it is scaled and normalised: `right`, or with the report's mistakes.
        """
        classifiers = list(cards["classifier"])
        name = _known("classifier", classifier or next(iter(classifiers), ""), classifiers)
        found = await services.classify(name, body, preparation)
        answers = [ClassAnswer(label=each.label, probability=each.probability) for each in found]
        return ClassifyAnswer(answers=answers, classifier=name)

    @app.websocket("/watch/{task}")
    async def watch(
        socket: WebSocket,
        there: Annotated[dict[str, GraphCard], Depends(policies_of)],
        policies: Annotated[list[str], Query(default_factory=list)],
    ) -> None:
        """See :mod:`pipelines.serving.watching`."""
        if not 1 <= len(policies) <= MAX_AGENTS:
            raise HTTPException(422, f"name 1 to {MAX_AGENTS} `policies`")
        await watching(socket, policies, [there[_known("policy", name, list(there))] for name in policies])

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        """The page on which a person can try the networks."""
        return FileResponse(PAGE)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether this process answers."""
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        """Whether the models are loaded, which they always are before the process answers."""
        return {"status": "ready"}

    @app.get("/models")
    async def described() -> dict[str, list[dict[str, Any]]]:
        """The models that are served, by kind, each with its card: origin, inputs and outputs."""
        return {kind: [_described(name, card) for name, card in cards[kind].items()] for kind in cards}

    return app


def _known(kind: str, name: str, names: list[str]) -> str:
    if name not in names:
        there = f"there are {', '.join(names)}" if names else "there is none"
        raise HTTPException(404, f"no {kind} {name!r}; {there}")
    return name


def _described(name: str, card: GraphCard) -> dict[str, Any]:
    values = asdict(card)
    values["details"] = {key: value for key, value in card.details.items() if key != "labels"}  # 1,000 words
    return {"name": name, **values}


def _inputs(request: ActRequest, card: GraphCard) -> Inputs:
    """The inputs of the graph, without the batch. Latents that are not given are drawn."""
    shapes = unbatched_shapes(card.inputs, card.details)
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
        raise HTTPException(422, f"the body is not a whole {MULTIPART}") from error
    for file in files.values():
        return file.read()
    raise HTTPException(422, f"the {MULTIPART} has no file; send one as `picture`")


async def _accepted(request: Request) -> Written:
    """The media type of the answer."""
    header = request.headers.get("accept", "*/*")
    best = parse_accept_header(header, MIMEAccept).best_match(WRITTEN)
    for media_type in WRITTEN:
        if media_type == best:
            return media_type
    raise HTTPException(406, f"Accept is {header}; answers are {' or '.join(WRITTEN)}")


async def _asked(request: Request) -> ActRequest:
    """The request in the body. FastAPI's own parsing takes half a request's time, 0.2 ms."""
    media_type, _ = parse_options_header(request.headers.get("content-type"))
    if media_type != JSON:
        raise HTTPException(415, f"Content-Type is {media_type or 'missing'}; it has to be {JSON}")
    try:
        return ActRequest.model_validate_json(await request.body())
    except ValidationError as error:
        raise HTTPException(422, _problems(error.errors())) from None


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
