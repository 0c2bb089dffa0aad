"""What every REST door does alike: read a body within limits, parse it strictly, answer, and render an error."""

import asyncio
import gzip
import re
import time
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from service.config import Settings
from service.engine.schema.encode import Timing
from service.errors import (
    Cancelled,
    InvalidArgument,
    MalformedRequest,
    RequestTimeout,
    RequestTooLarge,
    ServiceError,
    UnsupportedMedia,
)

JSON = "application/json"
GZIP_FROM_BYTES = 1024
DEADLINE_HEADER = "x-request-timeout-ms"
UNWATCHED_S = 0.25
"""Most requests are answered sooner; only the others get a task that waits for their caller to leave."""

_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")

TEXT_BRANCH, OBJECT_BRANCH = "<text>", "<object>"
"""Names of a union's branches; pydantic puts them into paths, where callers, who never wrote them, need not see."""
_UNION_BRANCH = re.compile(r"<|[a-z]+\[|(str|int)$")

PLAINER = {
    "Input should be": "must be",
    "Field required": "is required",
    "Tuple should have at most 2 items after validation, not": "must be a pair, [start, end]; its length is",
    "a valid array": "a list",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "a string",
    "a valid boolean": "true or false",
    " or must be": " or",
}
"""What pydantic says, and what people say."""

Parsed = TypeVar("Parsed")
Answer = TypeVar("Answer")


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI of a route that reads its body itself; `make_app` adds the schemas that it refers to."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


class StrictModel(BaseModel):
    """JSON that is taken only as written in the contract: no coercion, no unknown field, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


async def read_json(request: Request, adapter: TypeAdapter[Parsed], settings: Settings) -> Parsed:
    """Return the body as the adapter's type; raises a `ServiceError` for a body that is not one."""
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() != JSON or ("charset" in parameters.lower() and "utf-8" not in parameters.lower()):
        raise UnsupportedMedia(f"Send the body as {JSON} in UTF-8.")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMedia("Send the body without content-encoding.")
    return parse_json(await _read(request, settings), adapter)


def parse_json(body: bytes, adapter: TypeAdapter[Parsed]) -> Parsed:
    """Strictly: duplicate keys keep the last, everything else that JSON is loose about is refused."""
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise _explain(problems, body) from None


def deadline_of(request: Request) -> float | None:
    """The time.monotonic() reading that X-Request-Timeout-Ms asks for."""
    asked = request.headers.get(DEADLINE_HEADER)
    if asked is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,12}", asked):
        raise InvalidArgument(f"{DEADLINE_HEADER} must be a whole number of milliseconds.", reason="bad_header")
    return time.monotonic() + int(asked) / 1000


async def while_connected(request: Request, work: "asyncio.Future[Answer]") -> Answer:
    """Await `work`, and cancel it when the caller goes away; the server itself would let it run to the end.

    Whoever waits in a full queue is watched by one task that sleeps until the connection closes: thousands of callers
    that each looked several times a second took most of a core from those that were answered.
    """
    watch: asyncio.Task[None] | None = None
    try:
        await asyncio.wait({work}, timeout=UNWATCHED_S)
        if not work.done():
            watch = asyncio.create_task(_disconnect(request))
            either: list[asyncio.Future[Any]] = [work, watch]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            del either
        if not work.done():
            raise Cancelled("The caller left.")
        return work.result()
    finally:
        work.cancel()
        if watch is not None:
            watch.cancel()
        del work, watch  # an error knows this frame, and the work knows its error: a cycle


async def _disconnect(request: Request) -> None:
    """Return when the caller has gone; the body has been read, so nothing else is left to come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def answer(request: Request, body: bytes, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer, gzipped when the caller takes that and it is worth it."""
    headers = headers or {}
    if len(body) > GZIP_FROM_BYTES and _accepts_gzip(request.headers.get("accept-encoding", "")):
        # Level 1: digits of floats hardly shrink further, and this is the dearest step of the answer.
        body = await asyncio.to_thread(gzip.compress, body, 1, mtime=0)
        headers = {**headers, "content-encoding": "gzip"}
    return Response(body, media_type=JSON, headers={**headers, "vary": "accept-encoding"})


class Marked(Protocol):
    """An answer that says which model gave it, in which precision, and where the time went."""

    @property
    def model(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def timing(self) -> Timing: ...


def marks(found: Marked, digest: str) -> dict[str, str]:
    """The headers that say which model answered, in which precision, and where the time went."""
    return {
        "x-attendant-model": f"{found.model}@{digest}",
        "x-attendant-precision": found.precision,
        "server-timing": found.timing.describe(),
    }


def native_error(error: ServiceError, request_id: str) -> bytes:
    """The error body of API.md section 4."""
    return orjson.dumps(
        {"error": {"code": error.code, "reason": error.reason, "message": error.message, "request_id": request_id}}
    )


async def _read(request: Request, settings: Settings) -> bytes:
    limit = settings.max_request_bytes
    too_large = RequestTooLarge(
        f"The body is over the limit of {limit} bytes. Send several requests.", reason="body_too_large"
    )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(settings.body_timeout_ms / 1000):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise RequestTimeout(f"The body did not arrive within {settings.body_timeout_ms} ms.") from None
    except ClientDisconnect:
        raise Cancelled("The caller left.") from None
    return bytes(body)


def _accepts_gzip(header: str) -> bool:
    for part in header.split(","):
        coding, _, weight = part.partition(";")
        if coding.strip().lower() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _explain(problems: Sequence[Any], body: bytes) -> ServiceError:
    """Pydantic's problems as one sentence without anything of the input in it: the deepest one counts."""
    if problems[0]["type"] == "json_invalid":
        fault = problems[0]["msg"].removeprefix("InvalidArgument JSON: ")  # a position, and nothing of the input
        fault = fault.replace("unexpected end of hex escape", "half of a surrogate pair alone")
        return MalformedRequest(f"The body is not JSON: {fault}.")
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        # Pydantic reads NaN and Infinity, which are not JSON; no field takes them, so they only show here.
        return MalformedRequest("The body is not JSON: it has NaN, Infinity or a number that is out of range.")
    depth = max(len(problem["loc"]) for problem in problems)
    deepest = [problem for problem in problems if len(problem["loc"]) == depth]
    location = deepest[0]["loc"]
    steps = [step for step in location if isinstance(step, int) or not _UNION_BRANCH.match(step)]
    if deepest[0]["type"] == "extra_forbidden":
        name = location[-1] if _FIELD_NAME.fullmatch(str(location[-1])) else "with that name"
        where = f" in {_path(steps[:-1])}" if len(steps) > 1 else ""
        return InvalidArgument(f"There is no field {name}{where}.", reason="unknown_field")
    if location[-1:] == (OBJECT_BRANCH,) and deepest[0]["type"] == "model_type":
        expected = "must be a string or an object"
    else:
        expected = " or ".join(dict.fromkeys(problem["msg"] for problem in deepest))
        for theirs, ours in PLAINER.items():
            expected = expected.replace(theirs, ours)
    return InvalidArgument(f"{_path(steps)} {expected[0].lower()}{expected[1:]}.", reason="invalid_field")


def _path(steps: Sequence[int | str]) -> str:
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path or "The body"
