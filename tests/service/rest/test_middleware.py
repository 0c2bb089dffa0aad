"""Behavior common to all routes: unknown paths and methods, request IDs, and unhandled exceptions."""

import re
import socket
from dataclasses import replace

import httpx
import pytest
from attendant_client.types import EncodeRequest, EncodeResponse

from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.operations.inputs import Call
from service.operations.table import OPERATIONS
from tests.service.conftest import GOLDEN, ServiceHarness, open_harness


@pytest.mark.parametrize("path", ["/nothing", "/v1", "/v1/encode2", "/v3/..%2f..%2fetc", "/v1/modelx/%00",
                                  "/v1/../nothing", "/static/../../etc/passwd", "/" + "a" * 2000])  # fmt: skip
def test_unknown_route_is_not_found(rest: httpx.Client, path: str) -> None:
    response = rest.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["reason"] == "ROUTE_NOT_FOUND"
    assert len(response.content) <= 1024


@pytest.mark.parametrize(("method", "path", "allowed"), [("GET", "/v1/encode", "OPTIONS, POST"),
                                                         ("HEAD", "/v1/encode", "OPTIONS, POST"),
                                                         ("DELETE", "/v1/model", "GET, HEAD, OPTIONS"),
                                                         ("PUT", "/v1/embeddings", "OPTIONS, POST"),
                                                         ("PUT", "/", "GET, HEAD, OPTIONS, POST"),
                                                         ("GET", "/embed", "OPTIONS, POST"),
                                                         ("POST", "/health", "GET, HEAD, OPTIONS"),
                                                         ("POST", "/readyz", "GET, HEAD, OPTIONS"),
                                                         ("POST", "/v1/models/a", "GET, HEAD, OPTIONS"),
                                                         ("POST", "/docs", "GET, HEAD, OPTIONS")])  # fmt: skip
def test_unsupported_method_gets_405_with_allow(rest: httpx.Client, method: str, path: str, allowed: str) -> None:
    response = rest.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("request_id", ["abc-1.2_3", "a" * 128])
def test_request_id_is_returned(rest: httpx.Client, request_id: str) -> None:
    for path in ("/v1/model", "/nothing", "/livez"):
        assert rest.get(path, headers={"x-request-id": request_id}).headers["x-request-id"] == request_id


@pytest.mark.parametrize("request_id", [b"", b"a b", b"a" * 129, b'"><script>', b"\xff\xfe", b"{}"])
def test_invalid_request_id_is_replaced(rest: httpx.Client, request_id: bytes) -> None:
    first, second = (rest.get("/nothing", headers=[(b"x-request-id", request_id)]) for _ in range(2))
    for response in (first, second):
        assert re.fullmatch(r"[0-9a-f]{16}", response.headers["x-request-id"])
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert first.json()["error"]["request_id"] == first.headers["x-request-id"]


async def test_docs_option_disables_docs_and_openapi(model: LoadedModel) -> None:
    async with open_harness(model, docs=False) as harness:
        assert [(await harness.client.get(path)).status_code for path in ("/docs", "/openapi.json")] == [404, 404]


async def test_unhandled_exception_is_logged_and_not_returned(
    harness: ServiceHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response must have the log record's request ID."""

    async def broken(engine: Engine, request: EncodeRequest, call: Call) -> EncodeResponse:
        raise KeyError("/home/secret/path")

    monkeypatch.setitem(OPERATIONS, "encode", replace(OPERATIONS["encode"], run=broken))
    response = await harness.post("/v1/encode", {"inputs": GOLDEN}, **{"x-request-id": "test-1"})
    assert (response.status_code, response.json()["error"]["reason"]) == (500, "INTERNAL")
    assert "secret" not in response.text
    assert "KeyError" in caplog.text
    assert {getattr(record, "request_id", None) for record in caplog.records} == {"test-1"}


def send_raw(rest: httpx.Client, request: bytes) -> bytes:
    """Send raw bytes and read until the server closes the connection."""
    with socket.create_connection((rest.base_url.host, rest.base_url.port), timeout=20) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


FRAMINGS = {
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6",
    "negative length": b"Content-Length: -1",
    "length and chunked": b"Content-Length: 5\r\nTransfer-Encoding: chunked",
}


@pytest.mark.parametrize("head", FRAMINGS.values(), ids=FRAMINGS)
def test_ambiguous_framing_is_rejected(rest: httpx.Client, head: bytes) -> None:
    """The server closes the connection, which prevents request smuggling."""
    request = (
        b"POST /v1/encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + head + b"\r\n\r\nhello"
    )
    received = send_raw(rest, request)
    assert received.startswith(b"HTTP/1.1 400")
    assert received.count(b"HTTP/1.1") == 1
