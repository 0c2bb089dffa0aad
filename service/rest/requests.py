"""Reads request bodies under size, time and memory limits; handles deadlines and client disconnects."""

import asyncio
import gc
import re
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from service.config import Settings
from service.errors import (
    Cancelled,
    InvalidArgument,
    InvalidHeader,
    MalformedRequest,
    RequestTimeout,
    RequestTooLarge,
    TooMany,
    UnknownField,
    UnsupportedMedia,
)
from service.lifecycle import Lifecycle
from service.memory import MemoryBudget, Reservation
from service.operations.inputs import item_limits
from service.rest.bodies import JSON, TIMEOUT_HEADER, invalid_body
from service.rest.compression import CODINGS, ENCODING_HEADER, IDENTITY, inflate

GC_PAUSE_MIN_BYTES = 64 * 1024
"""Garbage collection is paused while parsing bodies of at least this size, because it doubles the time."""
EXTRA_CONTAINERS = 1024
"""Allowance for arrays and objects other than inputs, spans and occurrences."""
STRINGS_PER_CONTAINER = 8
MAX_TIMEOUT_DIGITS = 18
MAX_NAME = 40
HANDLING = "attendant.handling"
"""Scope key: the task that handles the request."""
BODY = "attendant.body"
"""Scope key: the body, once it is complete."""
FIELDS = "attendant.fields"
"""Scope key: the headers, as a dictionary."""
PAUSE_S = "attendant.pause_s"
"""Scope key: how long to stop reading from the connection after the response, in seconds."""
KNOWN = "attendant.known"
"""Scope key: True if a caller sent the request."""
DRAINED = "attendant.drained"
"""Scope key: a function that waits until the client has read the response, or has disconnected."""

ENCODING, TIMEOUT = ENCODING_HEADER.lower().encode(), TIMEOUT_HEADER.lower().encode()

Body = TypeVar("Body", bound=BaseModel)
Select = Callable[[Any], type[BaseModel]]
"""Returns the model of a body from its JSON value."""


class RequestReader:
    """Reads the bodies of all REST routes."""

    def __init__(self, lifecycle: Lifecycle, settings: Settings, budget: MemoryBudget | None = None) -> None:
        self._lifecycle = lifecycle
        self.settings = settings
        self.budget = budget or MemoryBudget(settings.max_pending_request_bytes, "request bodies")
        self._limits_of = 0
        self._limits: dict[str, int] = {}
        self._max_bytes = settings.max_request_bytes

    async def read(self, request: Request, model: type[Body] | Select, **limits: int) -> Body:
        """Read and parse the body as `parse_json` does; `limits` override `item_limits`."""
        self._update_limits()
        media_type, _, parameters = header(request, b"content-type").partition(";")
        if media_type.strip().lower() != JSON or (
            "charset" in parameters.lower() and "utf-8" not in parameters.lower()
        ):
            raise UnsupportedMedia(f"not {JSON} in UTF-8", f"Send {JSON}.", field="Content-Type")
        if header(request, ENCODING, IDENTITY).strip().lower() != IDENTITY:
            raise UnsupportedMedia("not supported", "Send the body uncompressed.", field=ENCODING_HEADER)
        body = await self._receive(request)
        return parse_json(body, model, self._limits | limits if limits else self._limits)

    async def read_optional(self, request: Request, model: type[Body], **limits: int) -> Body:
        """Read and parse the body as `model`, or return default values if it is empty. Content-Type is optional."""
        body = await self.read_bytes(request, (JSON,))
        return parse_json(body, model, self._limits | limits) if body else model()

    async def read_bytes(self, request: Request, media_types: Sequence[str]) -> bytes | bytearray:
        """Read the body, which may be compressed. Its Content-Type, if any, must be one of `media_types`."""
        media_type = header(request, b"content-type", media_types[0]).partition(";")[0].strip().lower()
        if media_type not in media_types:
            raise UnsupportedMedia("not supported", f"Send {' or '.join(media_types)}.", field="Content-Type")
        coding = header(request, ENCODING, IDENTITY).strip().lower()
        if coding not in (IDENTITY, *CODINGS):
            raise UnsupportedMedia("not supported", f"Use {' or '.join(CODINGS)}.", field=ENCODING_HEADER)
        self._update_limits()
        body = await self._receive(request)
        return body if coding == IDENTITY else inflate(body, coding, self._max_bytes)

    def deadline(self, request: Request) -> float | None:
        """Return the deadline set by X-Request-Timeout-Ms, a time.monotonic() reading; None without that header."""
        if TIMEOUT not in request.scope[FIELDS]:
            return None
        value = header(request, TIMEOUT).strip(" \t")
        if not re.fullmatch(r"[0-9]+", value):
            raise InvalidHeader("not a whole number of milliseconds", "Send digits only.", field=TIMEOUT_HEADER)
        limit = self.settings.max_timeout_ms
        milliseconds = limit if len(value) > MAX_TIMEOUT_DIGITS else min(int(value), limit)
        return time.monotonic() + milliseconds / 1000

    def _update_limits(self) -> None:
        """Compute body limits over all models, because a body may name any of them, once the models are loaded."""
        models = self._lifecycle.models
        if models.generation != self._limits_of:
            self._limits_of, self._limits = models.generation, item_limits(models.infos)
            self._max_bytes = max(info.limits.max_request_bytes for info in models.infos)

    async def _receive(self, request: Request) -> bytes | bytearray:
        """Return the body. Raises `ServiceError` if it is too large or too slow, or if the client disconnects."""
        limit, timeout_ms = self._max_bytes, self.settings.body_timeout_ms
        body: bytearray | None = request.scope.get(BODY)
        if body is not None:  # the usual case: asyncio.timeout costs as much as parsing such a body
            if len(body) > limit:
                raise _too_large(limit, len(body))
            return body
        declared = header(request, b"content-length")
        if declared.isdigit() and int(declared[:MAX_TIMEOUT_DIGITS]) > limit:
            raise _too_large(limit, int(declared[:MAX_TIMEOUT_DIGITS]))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._collect(request)
        except TimeoutError:
            raise RequestTimeout(
                "Request body not received in time",
                "Retry the request.",
                maximum=self.settings.body_timeout_ms,
                unit="ms",
            ) from None
        except ClientDisconnect:
            raise Cancelled from None

    async def _collect(self, request: Request) -> bytearray:
        """Collect the body. Chunks count against the memory budget as they arrive."""
        limit, body = self._max_bytes, bytearray()
        memory = Reservation(self.budget, request.scope["record"].holder)
        try:
            async for chunk in request.stream():
                if len(body) + len(chunk) > limit:
                    raise _too_large(limit)
                memory.grow(len(body) + len(chunk))
                body += chunk
        finally:
            memory.close()
        return body


def header(request: Request, name: bytes, default: str = "") -> str:
    """Return the value of a header by its name in lower case; Starlette compares all names one by one."""
    value: bytes | None = request.scope[FIELDS].get(name)
    return default if value is None else value.decode("latin-1")


def reject_query(request: Request) -> None:
    """Raise `InvalidArgument` for query parameters, which would be ignored: options are fields of the body."""
    for name in request.query_params:
        known = name if name.isidentifier() and len(name) <= MAX_NAME else "query"
        raise unknown_parameter(known, request.method)


def unknown_parameter(name: str, method: str = "GET") -> UnknownField:
    """Return the error for a query parameter."""
    remedy = "Remove it." if method == "GET" else "Send options in the body."
    return UnknownField("unknown query parameter", remedy, field=name)


def _too_large(limit: int, actual: int | None = None) -> RequestTooLarge:
    return RequestTooLarge("Request body too large", "Split the request.", actual=actual, maximum=limit, unit="bytes")


def parse_json(body: bytes | bytearray, model: type[Body] | Select, limits: dict[str, int]) -> Body:
    """Parse strict JSON as a model, which may be selected by the value. For duplicate keys, the last value wins.

    A thread would not relieve the event loop: orjson and pydantic hold the GIL. Raises `ServiceError`.
    """
    _check_containers(body, limits)
    pauses_gc = len(body) >= GC_PAUSE_MIN_BYTES and gc.isenabled()
    if pauses_gc:
        gc.disable()
    try:
        document = orjson.loads(body)
        selected: Any = model if isinstance(model, type) else model(document)
        parsed: Body = selected.model_validate(document, context=limits)
    except orjson.JSONDecodeError as error:
        raise _not_json(body, error) from None
    except ValidationError as error:
        raise invalid_body(error, document, selected) from None
    finally:
        if pauses_gc:
            gc.enable()
    return parsed


def _check_containers(body: bytes | bytearray, limits: dict[str, int]) -> None:
    """Reject a body with more arrays, objects or strings than any valid body.

    Parsing 2 MiB of `[],` or 200,000 field names takes 60 ms and holds the GIL.
    """
    limit = 2 * limits["inputs"] + limits["spans_per_request"] + limits["occurrences"] + EXTRA_CONTAINERS
    string_limit = STRINGS_PER_CONTAINER * limit
    if body.count(b"[") + body.count(b"{") <= limit and body.count(b'"') <= 2 * string_limit:
        return
    # Ignore quotes and brackets inside strings. Without escapes, every second part between quotes is outside of
    # strings.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = plain.count(b'"') // 2
    if strings > string_limit:
        raise _too_many("strings", strings, string_limit)
    outside = b"".join(plain.split(b'"')[::2])
    containers = outside.count(b"[") + outside.count(b"{")
    if containers > limit:
        raise _too_many("arrays and objects", containers, limit)


def _too_many(noun: str, actual: int, limit: int) -> InvalidArgument:
    return TooMany(
        f"Too many {noun} in the request body", "Send fewer.",
        actual=actual, maximum=limit,
    )  # fmt: skip


def _not_json(body: bytes | bytearray, error: orjson.JSONDecodeError) -> MalformedRequest:
    """Return the error for a body that is not UTF-8 or not JSON, with the position but without input text."""
    try:
        body.decode()
    except UnicodeDecodeError as wrong:
        return MalformedRequest(f"Request body is not UTF-8 (byte {wrong.start})", "Encode it in UTF-8.")
    reason = str(error).replace("surrogates not allowed", "unpaired surrogate")
    return MalformedRequest(f"Request body is not JSON ({reason})", "Correct it.")


@dataclass(slots=True)
class _Handling:
    """The task that handles a request, in the ASGI scope and its copies. `disconnected`: why it was cancelled."""

    task: "asyncio.Task[Any] | None"
    disconnected: bool = False


def allow_cancellation(scope: MutableMapping[str, Any]) -> None:
    """Let `cancel_request` cancel the current task, which handles the request of this ASGI scope."""
    scope[HANDLING] = _Handling(asyncio.current_task())


def cancel_request(scope: Mapping[str, Any]) -> None:
    """Cancel the task of a request whose client has disconnected, which uvicorn does not do."""
    handling: _Handling | None = scope.get(HANDLING)
    if handling is not None and handling.task is not None:
        handling.disconnected = True
        handling.task.cancel()


def was_disconnected(scope: Mapping[str, Any]) -> bool:
    """Return whether the task of a request was cancelled by `cancel_request`."""
    handling: _Handling = scope[HANDLING]
    return handling.disconnected
