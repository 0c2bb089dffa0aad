"""Errors: code, status and metric label per class, and how REST and gRPC render them."""

import inspect
import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc.status_pb2 import Status

from service.errors import (
    Cancelled,
    Internal,
    InvalidArgument,
    NonFiniteOutput,
    QueueFull,
    RequestTooLarge,
    ServiceError,
)
from service.request_log import RequestRecord
from service.rest.middleware import error_response
from service.rpc.interceptor import abort


def subclasses(kind: type[ServiceError]) -> Iterator[type[ServiceError]]:
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


# InvalidArgument has no reason of its own; every raise names one.
KINDS = sorted(set(subclasses(ServiceError)) - {InvalidArgument}, key=lambda kind: kind.__name__)


def make(kind: type[ServiceError]) -> ServiceError:
    if kind in (Cancelled, Internal, NonFiniteOutput):
        return kind()
    return kind("too long", "Shorten it.", field="inputs[3]", actual=612, maximum=256, unit="tokens")


class Aborted(Exception):
    """Raised by `FakeContext.abort`, as grpc's context would."""


class FakeContext:
    """A gRPC context that records the arguments of `abort`."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, Any], ...]) -> None:
        self.code, self.details, self.trailing = code, details, dict(trailing)
        raise Aborted


@pytest.mark.parametrize("kind", KINDS)
async def test_error_is_the_same_in_rest_and_grpc(kind: type[ServiceError]) -> None:
    """Compares code, reason, message and request ID. Both are at most 1 KiB."""
    error, context = make(kind), FakeContext()
    response = error_response(RequestRecord("rest", "id-1"), error)
    body = json.loads(bytes(response.body))["error"]
    with pytest.raises(Aborted):
        await abort(context, error, RequestRecord("grpc", "id-1"))
    assert (response.status_code, len(response.body) <= 1024) == (kind.http_status, True)
    assert body == {
        "code": kind.code,
        "reason": error.reason,
        "message": error.message,
        "field": error.field,
        "minimum": error.minimum,
        "maximum": error.maximum,
        "actual": error.actual,
        "request_id": "id-1",
    }
    assert (context.code.name, context.details) == (kind.code, error.message)
    status = Status.FromString(context.trailing["grpc-status-details-bin"])
    assert status.ByteSize() <= 1024
    assert error.reason.encode() in status.details[0].value
    assert context.trailing["x-request-id"] == "id-1"


WITH_PARAM = {"message", "type", "param", "code"}
TEI_TYPES = {424: "Backend", 429: "Overloaded", 500: "Backend", 503: "Unhealthy", 504: "Backend"}


@pytest.mark.parametrize("kind", KINDS)
def test_error_has_the_representation_of_other_apis(kind: type[ServiceError]) -> None:
    """OpenAI and vLLM return 400 for invalid content, and TEI another status for overload."""
    bad_request = 400 if kind.http_status == 422 else kind.http_status

    def render(api: str) -> tuple[int, Any]:
        response = error_response(RequestRecord(api, "id-1"), make(kind))
        return response.status_code, json.loads(bytes(response.body))

    status, body = render("openai")
    assert (status, set(body["error"])) == (bad_request, WITH_PARAM)
    assert (body["error"]["type"] == "server_error") == (kind.http_status >= 500)
    status, body = render("vllm")
    assert (status, body["error"]["code"], set(body["error"])) == (bad_request, bad_request, WITH_PARAM)
    assert (body["error"]["type"] == "InternalServerError") == (kind.http_status >= 500)
    status, body = render("infinity")
    assert (status, body["error"]["code"], set(body["error"])) == (kind.http_status, kind.http_status, WITH_PARAM)
    status, body = render("cohere")
    assert (status, body["id"], set(body)) == (kind.http_status, "id-1", {"id", "message"})
    status, body = render("tei")
    assert (status, set(body)) == ({"Overloaded": 429}.get(kind.__name__, kind.http_status), {"error", "error_type"})
    assert body["error_type"] == TEI_TYPES.get(status, "Validation")


@pytest.mark.parametrize(
    ("delay_s", "seconds", "milliseconds"),
    [(2.4, "3", "2400"), (2.00001, "3", "2001"), (0.01, "1", "10"), (None, None, "1000")],
)
async def test_full_queue_error_has_a_retry_delay(
    delay_s: float | None, seconds: str | None, milliseconds: str
) -> None:
    """Retry-After is in whole seconds and at least 1. The gRPC pushback is in milliseconds."""
    error, context = QueueFull("full", retry_after_s=delay_s), FakeContext()
    assert error_response(RequestRecord("rest", "id-1"), error).headers.get("retry-after") == seconds
    with pytest.raises(Aborted):
        await abort(context, error, RequestRecord("grpc", "id-1"))
    assert context.trailing["grpc-retry-pushback-ms"] == milliseconds


async def test_too_large_error_forbids_retries() -> None:
    """Clients retry other errors with this code."""
    context = FakeContext()
    with pytest.raises(Aborted):
        await abort(context, RequestTooLarge("large"), RequestRecord("grpc", "id-1"))
    assert context.trailing["grpc-retry-pushback-ms"] == "-1"


def test_internal_error_has_no_details() -> None:
    """No argument can pass on a library's message, which might contain input text."""
    assert "log" in Internal().message
    assert list(inspect.signature(NonFiniteOutput).parameters) == []
