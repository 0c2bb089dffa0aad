"""Responses: headers, bodies of errors, and JSON.

Large JSON is rendered and sent in parts, in short steps that do not hold up other requests.
"""

import asyncio
import base64
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.engine.schema.encode import Array, Timing, Token, Word
from service.engine.schema.explain import Unit
from service.engine.schema.labels import RerankResponse
from service.errors import ServiceError
from service.rest.codec import JSON
from service.rest.compression import CODINGS, accepted
from service.rest.compression import compress as compress_parts
from service.steps import Steps

GZIP_FROM_BYTES = 16 * 1024
"""Compressing the vector of one text takes 0.1 ms, a tenth of all that a small request costs, and saves 3 KB."""
PART_BYTES = 256 * 1024
SLICE = 8 * 1024
"""Weight rendered in one piece: about 90 KiB of numbers, 0.5 ms on an AMD EPYC with AVX2. The unit is a number."""
SLICE_BYTES = 192 * 1024
"""Bytes written as base64 in one piece; a multiple of 3, so that the pieces join without padding."""
OBJECT = 24
"""Weight of a token, word, unit or array, besides its numbers."""
ENTRY = 4
"""Weight of an item of a list or dictionary, added to the weight of its value."""
ITEM_WEIGHTS: dict[type, int] = {bool: 1, int: 1, float: 1, Token: OBJECT, Word: OBJECT, Unit: OBJECT}
"""Weight of each item of a list of one type: such a list is not weighed item by item."""

SCALARS = frozenset((str, int, float, bool, type(None)))


class ResponseMetadata(Protocol):
    """A response that names its model, its precision, and the time of each stage."""

    @property
    def model(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def timing(self) -> Timing: ...


def metadata_headers(response: ResponseMetadata, digest: str) -> dict[str, str]:
    """Return the headers that name the model, its precision, the time of each stage, and what scored documents."""
    headers = {
        "x-attendant-model": f"{response.model}@{digest}",
        "x-attendant-precision": response.precision,
        "server-timing": response.timing.describe(),
    }
    return headers | {"x-attendant-scored-by": response.scored_by} if isinstance(response, RerankResponse) else headers


def usage_body(tokens: int, truncated_inputs: int = 0) -> dict[str, int]:
    """Return the token counts of a request."""
    return {"tokens": tokens, "truncated_inputs": truncated_inputs}


def native_error(error: ServiceError, request_id: str) -> bytes:
    """Return the error body of the native API."""
    return orjson.dumps(
        {
            "error": {
                "code": error.code,
                "reason": error.reason,
                "message": error.message,
                "field": error.field,
                "minimum": error.minimum,
                "maximum": error.maximum,
                "actual": error.actual,
                "request_id": request_id,
            }
        }
    )


def tensor(array: Array) -> dict[str, Any]:
    """Return an array as its shape, dtype and bytes in base64."""
    return {"shape": array.shape, "dtype": array.dtype, "data": Base64(array)}


class PartsResponse(Response):
    """A response whose body is sent part by part: one call of `send` would copy 60 MB at once."""

    def __init__(self, parts: Sequence[bytes], headers: dict[str, str], media_type: str = JSON) -> None:
        self._parts = parts
        super().__init__(headers=headers, media_type=media_type)
        self.headers["content-length"] = str(sum(map(len, parts)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def json_response(
    request: Request, document: Any, headers: dict[str, str] | None = None, *, compress: bool = True
) -> Response:
    """Return the document as JSON, compressed if the client accepts that and the body is over `GZIP_FROM_BYTES`.

    `document` holds what orjson renders, `Array.values` and `Base64`. Do not `compress` vectors in base64: their bytes
    shrink by a quarter at most, and gzip would take longer than inference.
    """
    return await encoded_response(request, await render(document), JSON, headers, compress=compress)


async def encoded_response(
    request: Request, parts: list[bytes], media_type: str, headers: dict[str, str] | None, *, compress: bool
) -> Response:
    """Return a response with these parts, compressed if `compress`, if it is large, and if the client accepts that."""
    headers = {**(headers or {}), "vary": "accept-encoding"}
    if compress and (len(parts) > 1 or len(parts[0]) > GZIP_FROM_BYTES):
        codings = accepted(request.headers.get("accept-encoding", ""))
        coding = next((coding for coding in CODINGS if coding in codings), None)
        if coding is not None:
            parts = await compress_parts(parts, coding)
            headers["content-encoding"] = coding
    if len(parts) == 1:
        return Response(parts[0], media_type=media_type, headers=headers)
    return PartsResponse(parts, headers, media_type)


class Base64:
    """The bytes of an array, to be rendered as a string. No dataclass, because orjson renders those as objects."""

    def __init__(self, array: Array) -> None:
        self.array = array


async def render(document: Any) -> list[bytes]:
    """Return the document as JSON in parts; other tasks run in between."""
    if _weight(document, SLICE) < SLICE:
        return [_dump(document)]
    parts, pending, size = [], [], 0
    async for piece in Steps().each(_pieces(document)):
        pending.append(piece)
        size += len(piece)
        if size >= PART_BYTES:
            parts.append(b"".join(pending))
            pending, size = [], 0
    parts.append(b"".join(pending))
    return parts


def _weight(value: Any, enough: int) -> int:
    """Return about how long a value takes to render, in numbers of an array, or any number from `enough`."""
    total, pending = 0, [value]
    while pending and total < enough:
        value = pending.pop()
        if isinstance(value, list) and value and (each := ITEM_WEIGHTS.get(type(value[0]))):
            total += each * len(value)
        elif isinstance(value, (dict, list, tuple)):
            for item in value.values() if isinstance(value, dict) else value:
                if type(item) in SCALARS:
                    total += ENTRY + OBJECT
                else:
                    total += ENTRY
                    pending.append(item)
        elif isinstance(value, Base64):
            total += OBJECT + int(value.array.values.nbytes) // 8
        else:
            total += OBJECT + int(getattr(value, "size", 0))
    return total


def _pieces(value: Any) -> Iterator[bytes]:
    """Yield a large value piece by piece."""
    if isinstance(value, Base64):
        yield from _base64_pieces(value.array)
    elif _weight(value, SLICE) < SLICE:
        yield _dump(value)
    elif isinstance(value, dict):
        separator = b"{"
        for name, item in value.items():
            yield separator + orjson.dumps(name) + b":"
            yield from _pieces(item)
            separator = b","
        yield b"}"
    else:
        start = 0
        while start < len(value):
            end = _end_of_slice(value, start)
            yield b"," if start else b"["
            if end - start == 1:
                yield from _pieces(value[start])
            else:
                yield _dump(value[start:end])[1:-1]
            start = end
        yield b"]"


def _end_of_slice(items: Any, start: int) -> int:
    """Return the end of a slice of bounded weight of a list or array; a heavier item is a slice of its own."""
    if not isinstance(items, (list, tuple)):
        return start + max(1, SLICE * len(items) // int(items.size))
    if each := ITEM_WEIGHTS.get(type(items[start])):
        return start + SLICE // each
    weight = 0
    for place in range(start, len(items)):
        weight += _weight(items[place], SLICE) + ENTRY
        if weight >= SLICE:
            return max(place, start + 1)
    return len(items)


def _base64_pieces(array: Array) -> Iterator[bytes]:
    data = memoryview(array.to_bytes())
    yield b'"'
    for start in range(0, len(data), SLICE_BYTES):
        yield base64.b64encode(data[start : start + SLICE_BYTES])
    yield b'"'


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, default=_default, option=orjson.OPT_SERIALIZE_NUMPY)


def _default(value: Any) -> str:
    if isinstance(value, Base64):
        return value.array.to_base64()
    raise TypeError
