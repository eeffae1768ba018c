"""Bodies of requests: their media types, encodings and sizes."""

import codecs
import io
import zlib
from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from werkzeug.datastructures import MIMEAccept
from werkzeug.formparser import MultiPartParser
from werkzeug.http import parse_accept_header, parse_options_header

from pipelines.config.serving import ServiceConfig
from pipelines.serving.pictures import READ, WRITTEN, Written

JSON = "application/json"
MULTIPART = "multipart/form-data"
HAS_ARRIVED = "singleshot.has_arrived"
"""Key of an ASGI scope whose request has been read to its end."""
Read = TypeVar("Read", bound=BaseModel)
_ENCODINGS = ("gzip", "x-gzip", "deflate")
_FIND_HEADER = 32
"""Added to a window's size, lets zlib find out whether data have a header of gzip or of zlib."""


async def read_body(request: Request, limits: ServiceConfig) -> bytes:
    """The body of a request, decompressed.

    Raises:
        HTTPException: 413, 415 (an unknown encoding) or 422 (the data are damaged).
    """
    most = int(limits.max_body_mb * 1e6)
    too_large = HTTPException(413, f"the body is larger than {limits.max_body_mb:g} MB")
    if int(request.headers.get("content-length", 0)) > most:
        raise too_large
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise too_large
    request.scope[HAS_ARRIVED] = True
    encoding = _encoding(request)
    if not encoding:
        return bytes(body)
    if encoding not in _ENCODINGS:
        known = "gzip, deflate"
        raise HTTPException(
            415, f"Content-Encoding is {encoding}; it has to be one of {known}", {"Accept-Encoding": known}
        )
    try:
        content = _decompress(bytes(body), most + 1)
    except zlib.error:
        raise HTTPException(422, f"the body is not whole in the encoding {encoding}") from None
    if len(content) > most:
        raise too_large
    return content


def _encoding(request: Request) -> str:
    """How the body is encoded: the codings of all headers, without `identity` (RFC 9110, section 8.4)."""
    listed = ",".join(request.headers.getlist("content-encoding")).lower().split(",")
    return ", ".join(coding for each in listed if (coding := each.strip()) not in ("", "identity"))


def _decompress(body: bytes, most: int) -> bytes:
    """The first `most` bytes of gzip's or zlib's data, which may consist of several members."""
    content = bytearray()
    while body and len(content) < most:
        member = zlib.decompressobj(zlib.MAX_WBITS | _FIND_HEADER)
        content += member.decompress(body, most - len(content))
        if not member.eof and len(content) < most:
            raise zlib.error("the data are cut off")
        body = member.unused_data
    return bytes(content)


async def read_json(request: Request, limits: ServiceConfig, model: type[Read]) -> Read:
    """The request's body as `model`. FastAPI's own reading takes half of a request's time.

    Raises:
        HTTPException: see :func:`read_body`; 415.
        pydantic.ValidationError: it is no JSON, or no `model`.
    """
    media_type, options = _media_type(request)
    if media_type != JSON:
        raise _unknown_type(media_type, [JSON])
    if (charset := options.get("charset", "utf-8").lower()) not in {"utf-8", "utf8", "us-ascii"}:
        raise HTTPException(415, f"Content-Type has the charset {charset}; JSON has to be in UTF-8")
    body = await read_body(request, limits)
    return model.model_validate_json(body.removeprefix(codecs.BOM_UTF8))


async def read_picture(request: Request, limits: ServiceConfig) -> bytes:
    """The file of the picture: the body, or the first file of a form.

    Raises:
        HTTPException: see :func:`read_body`; 415, or 422 (the form is damaged or has no file).
    """
    media_type, options = _media_type(request)
    if media_type not in (*READ, MULTIPART):
        raise _unknown_type(media_type, (*READ, MULTIPART))
    body = await read_body(request, limits)
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


def accepted(request: Request) -> Written:
    """The media type of a picture that is answered.

    Raises:
        HTTPException: 406.
    """
    header = ", ".join(request.headers.getlist("accept")) or "*/*"
    best = parse_accept_header(_registered(header), MIMEAccept).best_match(WRITTEN)
    for media_type in WRITTEN:
        if media_type == best:
            return media_type
    raise HTTPException(406, f"Accept is {header}; answers are {' or '.join(WRITTEN)}")


def _media_type(request: Request) -> tuple[str, dict[str, str]]:
    """The media type of the body, in small letters, and its parameters."""
    media_type, options = parse_options_header(request.headers.get("content-type"))
    return _registered(media_type), options


def _registered(media_types: str) -> str:
    """Media types in small letters, and JPEG by its registered name, which many programs don't know."""
    return media_types.lower().replace("image/jpg", "image/jpeg")


def _unknown_type(media_type: str, known: Sequence[str]) -> HTTPException:
    given = media_type or "missing"
    return HTTPException(415, f"Content-Type is {given}; it has to be one of {', '.join(known)}")
