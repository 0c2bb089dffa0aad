"""Reading a request: its body within limits of size, time and memory, its deadline, and its client's disconnection."""

import asyncio
import contextlib
import gc
import re
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from service.config import Settings
from service.errors import (
    Cancelled,
    InvalidArgument,
    MalformedRequest,
    Overloaded,
    RequestTimeout,
    RequestTooLarge,
    UnsupportedMedia,
)
from service.lifecycle import Lifecycle
from service.limits import item_limits
from service.rest.codec import JSON
from service.rest.problems import invalid_body

TIMEOUT_HEADER = "x-request-timeout-ms"
DISCONNECT_CHECK_DELAY_S = 0.25
"""Most responses are ready sooner; only later ones get a task that waits for the client to disconnect."""
NO_COLLECTION_FROM_BYTES = 64 * 1024
SPARE_CONTAINERS = 1024
"""Arrays and objects beside inputs, spans and occurrences."""
STRINGS_PER_CONTAINER = 8
MAX_TIMEOUT_DIGITS = 18

Body = TypeVar("Body", bound=BaseModel)
T = TypeVar("T")


class BodyBudget:
    """The memory of all bodies that are being received."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    def take(self, size: int) -> None:
        """Count bytes that were received; raises `Overloaded` over the limit."""
        if self.used + size > self._limit:
            raise Overloaded(
                f"Request bodies: too much memory in use ({self.used + size} bytes, limit {self._limit}). Retry later.",
                retry_after_s=1,
            )
        self.used += size

    def give_back(self, size: int) -> None:
        """Uncount bytes whose request was accepted or rejected."""
        self.used -= size


class RequestReader:
    """Reads the bodies of all REST routes."""

    def __init__(self, lifecycle: Lifecycle, settings: Settings) -> None:
        self._lifecycle = lifecycle
        self.settings = settings
        self.budget = BodyBudget(settings.max_pending_request_bytes)

    async def read(self, request: Request, model: type[Body], **limits: int) -> Body:
        """Return the body as the model; raises a `ServiceError` for any other body.

        `limits` replace those of `item_limits`.
        """
        info = self._lifecycle.engine.info
        media_type, _, parameters = request.headers.get("content-type", "").partition(";")
        if media_type.strip().lower() != JSON or (
            "charset" in parameters.lower() and "utf-8" not in parameters.lower()
        ):
            raise UnsupportedMedia(f"Content-Type: not {JSON} in UTF-8. Send that.")
        if request.headers.get("content-encoding", "identity") != "identity":
            raise UnsupportedMedia("Content-Encoding: not supported. Send the body without it.")
        body = await self._receive(request)
        return parse_json(body, model, item_limits(info) | limits)

    def deadline(self, request: Request) -> float | None:
        """Return the time.monotonic() reading that X-Request-Timeout-Ms stands for; None without that header."""
        value = request.headers.get(TIMEOUT_HEADER)
        if value is None:
            return None
        value = value.strip(" \t")
        if not re.fullmatch(r"[0-9]+", value):
            raise InvalidArgument(
                f"{TIMEOUT_HEADER}: not a whole number of milliseconds, 0 or more. Correct it.", reason="bad_header"
            )
        limit = self.settings.max_deadline_ms
        milliseconds = limit if len(value) > MAX_TIMEOUT_DIGITS else min(int(value), limit)
        return time.monotonic() + milliseconds / 1000

    async def _receive(self, request: Request) -> bytearray:
        settings = self.settings
        limit = settings.max_request_bytes
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared[:MAX_TIMEOUT_DIGITS]) > limit:
            raise _too_large(limit)
        body, counted = bytearray(), 0
        try:
            async with asyncio.timeout(settings.body_timeout_ms / 1000):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > limit:
                        raise _too_large(limit)
                    self.budget.take(len(chunk))
                    counted += len(chunk)
                    body += chunk
        except TimeoutError:
            raise RequestTimeout(
                f"Request body: not received in time (limit {settings.body_timeout_ms} ms). Retry the request."
            ) from None
        except ClientDisconnect:
            raise Cancelled("The client disconnected.") from None
        finally:
            # From here to admission nothing waits: the body is parsed and submitted in the same step of the loop.
            self.budget.give_back(counted)
        return body


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(
        f"Request body: too large (limit {limit} bytes). Split the request.", reason="body_too_large"
    )


def parse_json(body: bytes | bytearray, model: type[Body], limits: dict[str, int]) -> Body:
    """Return strict JSON as the model. Of duplicate keys the last counts."""
    _check_containers(body, limits)
    if len(body) < NO_COLLECTION_FROM_BYTES:
        return _parse(body, model, limits)
    with _no_collections():
        return _parse(body, model, limits)


def _parse(body: bytes | bytearray, model: type[Body], limits: dict[str, int]) -> Body:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedRequest(f"Request body: not JSON ({_reason(error)}). Correct it.") from None
    try:
        return model.model_validate(document, context=limits)
    except ValidationError as error:
        raise invalid_body(error, document, model) from None


def _check_containers(body: bytes | bytearray, limits: dict[str, int]) -> None:
    """Reject a body of more arrays, objects or strings than any valid one has.

    Parsing 2 MiB of `[],` takes 60 ms and holds the interpreter lock, and so do 200,000 field names.
    """
    limit = 2 * limits["inputs"] + limits["spans_per_request"] + limits["occurrences"] + SPARE_CONTAINERS
    string_limit = STRINGS_PER_CONTAINER * limit
    if body.count(b"[") + body.count(b"{") <= limit and body.count(b'"') <= 2 * string_limit:
        return
    # Quotes and brackets in texts do not count. Without escapes, every other part between quotes is outside of strings.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = plain.count(b'"') // 2
    if strings > string_limit:
        raise _too_many("strings", strings, string_limit)
    outside = b"".join(plain.split(b'"')[::2])
    containers = outside.count(b"[") + outside.count(b"{")
    if containers > limit:
        raise _too_many("arrays and objects", containers, limit)


def _too_many(noun: str, actual: int, limit: int) -> InvalidArgument:
    message = f"Request body: too many {noun} ({actual}, limit {limit}). Split the request."
    return InvalidArgument(message, reason="too_many_items")


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Collect no garbage while a large body is parsed: collections double the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _reason(error: orjson.JSONDecodeError) -> str:
    """Return the parser's message, a position included and input text not."""
    return str(error).replace("surrogates not allowed", "half of a surrogate pair")


async def while_connected(request: Request, work: "asyncio.Future[T]") -> T:
    """Await `work`, and cancel it when the client disconnects; the server itself would let it run to the end.

    One task per waiting request sleeps until the connection closes. Polling connections several times a second took
    most of a core when thousands of clients waited in a full queue.
    """
    watch: asyncio.Task[None] | None = None
    try:
        await asyncio.wait({work}, timeout=DISCONNECT_CHECK_DELAY_S)
        if not work.done():
            watch = asyncio.create_task(_disconnect(request))
            either: list[asyncio.Future[Any]] = [work, watch]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            del either
        if not work.done():
            raise Cancelled("The client disconnected.")
        return work.result()
    finally:
        work.cancel()
        if watch is not None:
            watch.cancel()
        del work, watch  # an error refers to this frame, and the future to its error: a reference cycle


async def _disconnect(request: Request) -> None:
    """Return when the client has disconnected; the body has been read, so no other message follows."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
