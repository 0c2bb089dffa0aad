"""Behavior common to all routes: unknown paths and methods, request IDs, unhandled exceptions, and the OpenAPI
routes.
"""

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

MODEL_ROUTES = (("get", ""), ("get", "/ready"), ("get", "/config"), ("get", "/stats"), ("post", "/infer"))
"""Open Inference Protocol routes for a single model."""
ROUTES = {
    ("post", "/v1/encode"),
    ("post", "/v1/tokenize"),
    ("post", "/v1/attend"),
    ("post", "/v1/compare"),
    ("post", "/v1/similarity"),
    ("post", "/v1/rerank"),
    ("post", "/v1/classify"),
    ("post", "/v1/token-classify"),
    ("post", "/v1/fill-mask"),
    ("get", "/v1/model"),
    ("post", "/v1/embeddings"),
    ("post", "/openai/deployments/{name}/embeddings"),
    ("post", "/embeddings"),
    ("post", "/detokenize"),
    ("get", "/version"),
    ("post", "/api/embed"),
    ("post", "/api/embeddings"),
    ("get", "/api/tags"),
    ("get", "/api/version"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{name}"),
    ("post", "/"),
    ("post", "/embed"),
    ("post", "/embed_all"),
    ("post", "/embed_sparse"),
    ("post", "/rerank"),
    ("post", "/predict"),
    ("post", "/similarity"),
    ("post", "/tokenize"),
    ("post", "/decode"),
    ("get", "/info"),
    ("get", "/health"),
    ("get", "/ping"),
    ("post", "/infinity/embeddings"),
    ("post", "/infinity/rerank"),
    ("post", "/infinity/classify"),
    ("get", "/infinity/models"),
    ("post", "/models/{name}/pipeline/fill-mask"),
    ("post", "/models/{name}/pipeline/token-classification"),
    ("post", "/score"),
    ("post", "/v1/score"),
    ("post", "/classify"),
    ("post", "/pooling"),
    ("post", "/v2/rerank"),
    ("post", "/v2/embed"),
    ("get", "/v2"),
    ("get", "/v2/health/live"),
    ("get", "/v2/health/ready"),
    ("get", "/v2/models/stats"),
    ("post", "/v2/repository/index"),
    ("post", "/v2/repository/models/{name}/load"),
    ("post", "/v2/repository/models/{name}/unload"),
    *((method, f"/v2/models/{{name}}{suffix}") for method, suffix in MODEL_ROUTES),
    *((method, f"/v2/models/{{name}}/versions/{{version}}{suffix}") for method, suffix in MODEL_ROUTES),
    ("get", "/livez"),
    ("get", "/readyz"),
}


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


def test_openapi_lists_the_running_routes(rest: httpx.Client) -> None:
    paths = rest.get("/openapi.json").json()["paths"]
    assert {(method, path) for path, methods in paths.items() for method in methods} == ROUTES
    for method, path in ROUTES:
        concrete = path.replace("{name}", "all-MiniLM-L6-v2").replace("{version}", "1")
        assert rest.request(method, concrete).status_code not in (404, 405)


def test_openapi_describes_the_bodies(rest: httpx.Client) -> None:
    document = rest.get("/openapi.json").json()
    body = document["paths"]["/v1/encode"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = document["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    assert set(schema["properties"]) == {
        "model", "inputs", "outputs", "layers", "layer_reduce", "pooling", "normalize", "dimensions", "truncation",
        "prompt_name", "prompt", "role", "encoding_format", "dtype", "chunks",
    }  # fmt: skip
    assert (schema["required"], schema["additionalProperties"]) == (["inputs"], False)


def test_openapi_references_resolve(rest: httpx.Client) -> None:
    """Client generators require this."""
    document = rest.get("/openapi.json").json()
    for reference in set(re.findall(r'"\$ref":"([^"]+)"', rest.get("/openapi.json").text.replace(" ", ""))):
        node = document
        for key in reference.removeprefix("#/").split("/"):
            assert key in node, reference
            node = node[key]


def test_docs_are_served(rest: httpx.Client) -> None:
    assert "swagger" in rest.get("/docs").text.lower()


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
