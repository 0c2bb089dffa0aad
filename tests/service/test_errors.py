"""The table of errors: every class, its code, status and label, and both renderings of it."""

import inspect
import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc.status_pb2 import Status

from service import errors
from service.errors import Internal, NonFiniteOutput, QueueFull, RequestTooLarge, ServiceError
from service.metrics import REJECTIONS
from service.rest.middleware import RequestContext, error_response
from service.rpc.interceptor import abort


def subclasses(kind: type[ServiceError]) -> Iterator[type[ServiceError]]:
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


KINDS = sorted(set(subclasses(ServiceError)), key=lambda kind: kind.__name__)


def make(kind: type[ServiceError]) -> ServiceError:
    return kind() if kind in (Internal, NonFiniteOutput) else kind("inputs[3] has 612 tokens; the limit is 256.")


def documented() -> dict[str, tuple[int, str]]:
    """Status and code of each class in the tree of the module's docstring; an indented one has its parent's."""
    found: dict[str, tuple[int, str]] = {}
    parent = (0, "")
    for line in (errors.__doc__ or "").splitlines():
        branch, _, rest = line.partition("── ")
        words = rest.split()
        if words and len(branch) <= 2 and len(words) >= 3:
            parent = (int(words[1]), words[2])
        if words:
            found[words[0]] = parent
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_error_matches_the_docstring(kind: type[ServiceError]) -> None:
    """Code and HTTP status, and a label that the metrics know."""
    assert documented()[kind.__name__] == (kind.http_status, kind.code)
    assert kind.code in grpc.StatusCode.__members__
    assert kind.label in ("", *REJECTIONS)
    assert make(kind).reason.replace("_", "").isalpha()


def test_docstring_lists_all_errors() -> None:
    """And no class that is gone."""
    assert set(documented()) == {kind.__name__ for kind in KINDS}
    assert len({make(kind).reason for kind in KINDS}) == len(KINDS)


class Aborted(Exception):
    """What gRPC's own context raises."""


class Context:
    """The one method of a gRPC context that an error needs; it notes what it was told."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, Any], ...]) -> None:
        self.code, self.details, self.trailing = code, details, dict(trailing)
        raise Aborted


@pytest.mark.parametrize("kind", KINDS)
async def test_error_is_the_same_in_rest_and_grpc(kind: type[ServiceError]) -> None:
    """Code, reason, message and request id, in at most 1 KiB."""
    error, context = make(kind), Context()
    response = error_response(RequestContext("id-1", "rest"), error)
    body = json.loads(bytes(response.body))["error"]
    with pytest.raises(Aborted):
        await abort(context, error, "id-1")
    assert (response.status_code, len(response.body) <= 1024) == (kind.http_status, True)
    assert body == {"code": kind.code, "reason": error.reason, "message": error.message, "request_id": "id-1"}
    assert (context.code.name, context.details) == (kind.code, error.message)
    status = Status.FromString(context.trailing["grpc-status-details-bin"])
    assert status.ByteSize() <= 1024
    assert error.reason.encode() in status.details[0].value
    assert context.trailing["x-request-id"] == "id-1"


@pytest.mark.parametrize("kind", KINDS)
def test_openai_has_a_kind_for_each(kind: type[ServiceError]) -> None:
    """A type that its clients know, and 400 for content that is wrong."""
    response = error_response(RequestContext("id-1", "openai"), make(kind))
    body = json.loads(bytes(response.body))["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert response.status_code == (400 if kind.http_status == 422 else kind.http_status)
    assert (body["type"] == "server_error") == (kind.http_status >= 500)


@pytest.mark.parametrize(
    ("asked", "seconds", "milliseconds"), [(2.4, "2", "2400"), (0.01, "1", "10"), (None, None, "1000")]
)
async def test_full_queue_error_has_a_retry_delay(asked: float | None, seconds: str | None, milliseconds: str) -> None:
    """Retry-After in whole seconds, never 0; pushback in milliseconds."""
    error, context = QueueFull("full", retry_after_s=asked), Context()
    assert error_response(RequestContext("id-1", "rest"), error).headers.get("retry-after") == seconds
    with pytest.raises(Aborted):
        await abort(context, error, "id-1")
    assert context.trailing["grpc-retry-pushback-ms"] == milliseconds


async def test_too_large_error_forbids_retries() -> None:
    """Though its code is one that clients retry."""
    context = Context()
    with pytest.raises(Aborted):
        await abort(context, RequestTooLarge("large"), "id-1")
    assert context.trailing["grpc-retry-pushback-ms"] == "-1"


def test_internal_error_has_no_details() -> None:
    """No argument could carry a library's text."""
    assert "log" in Internal().message
    assert list(inspect.signature(NonFiniteOutput).parameters) == []
