"""Responses: headers, bodies of errors, and bodies in parts."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.engine.schema.encode import Array, Timing
from service.errors import ServiceError
from service.rest.codec import JSON
from service.rest.compression import CODINGS, accepted
from service.rest.compression import compress as compress_parts
from service.rest.rendering import Base64, render

GZIP_FROM_BYTES = 16 * 1024
"""Compressing the vector of one text takes 0.1 ms, a tenth of all that a small request costs, and saves 3 KB."""


class ResponseMetadata(Protocol):
    """A response that names its model, its precision, and the time of each stage."""

    @property
    def model(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def timing(self) -> Timing: ...


def metadata_headers(response: ResponseMetadata, digest: str) -> dict[str, str]:
    """Return the headers that name the model, its precision, and the time of each stage."""
    return {
        "x-attendant-model": f"{response.model}@{digest}",
        "x-attendant-precision": response.precision,
        "server-timing": response.timing.describe(),
    }


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
    codings = accepted(request.headers.get("accept-encoding", "")) if compress else []
    coding = next((coding for coding in CODINGS if coding in codings), None)
    if coding is not None and (len(parts) > 1 or len(parts[0]) > GZIP_FROM_BYTES):
        parts = await compress_parts(parts, coding)
        headers["content-encoding"] = coding
    if len(parts) == 1:
        return Response(parts[0], media_type=media_type, headers=headers)
    return PartsResponse(parts, headers, media_type)
