"""Behavior common to all routes: paths and methods, hosts, request IDs, and unhandled exceptions."""

import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from attendant_client.types import EncodeRequest, EncodeResponse

from service import __version__
from service.config import ConfigError, load_settings
from service.engine.engine import Engine
from service.engine.model_loader import LoadedModel
from service.errors import HostNotAllowed
from service.operations.inputs import Call
from service.operations.table import OPERATIONS
from service.rest.app import make_app
from service.rest.hosts import HostCheck
from service.rest.middleware import normalize
from tests.service.conftest import GOLDEN, ServiceHarness, open_harness
from tests.service.rest.test_server import serving
from tests.serving import serve


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


# Paths that clients send besides those of the routes: aliases, extra slashes, prefixes of proxies, and mistakes.

MODEL = "all-MiniLM-L6-v2"
PREFIX = "/embeddings-api"
EMBEDDINGS = {"input": "money bank grows", "model": MODEL}


@pytest.fixture(scope="module")
def prefixed(model: LoadedModel) -> Iterator[httpx.Client]:
    with serve(model, root_path=PREFIX) as client:
        yield client


@pytest.mark.parametrize(
    "path", ["/embeddings", "//v1/embeddings", "/v1/embeddings/", "/v1//embeddings//", f"{PREFIX}/v1/embeddings"]
)
def test_path_reaches_the_route(prefixed: httpx.Client, path: str) -> None:
    expected = prefixed.post("/v1/embeddings", json=EMBEDDINGS).json()
    assert prefixed.post(f"{prefixed.base_url}".rstrip("/") + path, json=EMBEDDINGS).json() == expected


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/v1/embedding", "/v1/embeddings"),
        ("/v1/v1/embeddings", "/v1/embeddings"),
        ("/v1/embeddings/embeddings", "/v1/embeddings"),
        ("/openai/v1/embeddings", "/v1/embeddings"),
        ("/v1/re-rank", "/v1/rerank"),
        ("/api/v1/embeddings", "/v1/embeddings"),
        ("/v1/embed", "/v1/embeddings"),
        ("/v1/encodes", "/v1/encode"),
    ],
)
def test_unknown_path_names_the_nearest_one(prefixed: httpx.Client, path: str, nearest: str) -> None:
    response = prefixed.post(path, json={})
    assert response.status_code == 404
    assert f"Did you mean {nearest}?" in response.text


def test_prefix_that_is_part_of_a_route_is_kept() -> None:
    assert normalize("/api/embed", "/api") == "/api/embed"
    assert normalize("/api/v1/encode", "/api") == "/v1/encode"
    assert normalize("/api/", "/api") == "/"
    assert normalize("/api", "/api") == "/"
    assert normalize("/api", "/api", "GET") == "/api"  # URLs in the page are relative
    assert normalize("//api//v1/encode", "/api") == "/v1/encode"
    assert normalize("//livez", "") == "//livez"


def test_docs_work_behind_a_prefix(prefixed: httpx.Client) -> None:
    """All URLs of the page are relative, and requests go to the prefix."""
    for base in ("", PREFIX):
        page = prefixed.get(f"{base}/docs")
        for url in re.findall(r'(?:src|href)="([^"]+)"', page.text):
            assert prefixed.get(f"{base}/{url}").status_code == 200
        start = prefixed.get(f"{base}/docs/start.js").text
        assert 'url: "openapi.json"' in start
        assert prefixed.get(f"{base}/openapi.json").json()["servers"] == [{"url": PREFIX}]
        assert prefixed.get(f"{base}/").headers["content-type"].startswith("text/html")


def close(actual: Any, expected: Any) -> None:
    """Compare vectors, whose last digits depend on the other texts of their batches in bfloat16."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=5e-3)


def test_ollama_clients_get_the_same_vectors(prefixed: httpx.Client) -> None:
    texts = ["money bank grows", "word " * 300]
    native = prefixed.post("/v1/encode", json={"inputs": texts, "truncation": "right"}).json()
    vectors = np.array([result["pooled"] for result in native["results"]])
    body = {"model": f"{MODEL}:latest", "input": texts, "keep_alive": "5m", "options": {}}
    response = prefixed.post("/api/embed", json=body)
    answer = response.json()
    assert answer["model"] == MODEL
    close(answer["embeddings"], vectors)
    assert answer["prompt_eval_count"] == sum(result["token_count"] for result in native["results"])
    assert response.headers["x-attendant-ignored"] == "keep_alive, options"
    close(prefixed.post("/api/embed", json={"model": MODEL, "input": texts[0]}).json()["embeddings"], vectors[:1])
    close(prefixed.post("/api/embeddings", json={"model": MODEL, "prompt": texts[0]}).json()["embedding"], vectors[0])
    short = prefixed.post("/api/embed", json={"model": MODEL, "input": texts[0], "dimensions": 8}).json()["embeddings"]
    assert len(short[0]) == 8
    assert [model["name"] for model in prefixed.get("/api/tags").json()["models"]] == [MODEL]
    assert prefixed.get("/api/version").json() == {"version": __version__}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"model": "llama3", "input": "a"}, 404, 'model: not found ("llama3")'),
        ({"model": MODEL, "input": "word " * 300, "truncate": False}, 422, "or set truncate to true"),
        ({"model": MODEL}, 422, "input: missing. Send it."),
    ],
)
def test_ollama_clients_get_its_errors(prefixed: httpx.Client, body: Any, status: int, message: str) -> None:
    response = prefixed.post("/api/embed", json=body)
    assert response.status_code == status
    assert list(response.json()) == ["error"]
    assert message in response.json()["error"]


def test_sentences_at_the_root_are_explained(prefixed: httpx.Client) -> None:
    body = {"inputs": {"source_sentence": "a", "sentences": ["b"]}}
    response = prefixed.post("/", json=body)
    assert response.json()["error"] == "inputs: wrong type (object). Send sentences to compare to /similarity."
    assert prefixed.post("/similarity", json=body).status_code == 200


def test_detokenize_returns_the_text_of_tokens(prefixed: httpx.Client) -> None:
    tokens = prefixed.post("/v1/tokenize", json={"inputs": "money bank grows"}).json()["results"][0]["tokens"]
    ids = [token["id"] for token in tokens]
    response = prefixed.post("/detokenize", json={"model": MODEL, "tokens": ids})
    assert response.json() == {"prompt": "[CLS] money bank grows [SEP]"}
    wrong = prefixed.post("/detokenize", json={"tokens": [10**6]}).json()["error"]
    assert wrong["param"] == "tokens[0]"
    assert prefixed.get("/version").json() == {"version": __version__}


# The Host header, and cross-origin browser requests.

ORIGIN = "https://attendant.example"


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "page.localhost", "127.0.0.1", "127.8.8.8:1", "[::1]"])
def test_loopback_names_are_allowed(host: str) -> None:
    HostCheck("127.0.0.1", "").check(host.encode())
    HostCheck("::1", "").check(host.encode())


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "["]
)
def test_other_names_are_rejected_on_loopback(host: str) -> None:
    with pytest.raises(HostNotAllowed, match=r"^Host: not allowed \(\".*\"\)\. Add it to ATTENDANT_ALLOWED_HOSTS\.$"):
        HostCheck("127.0.0.1", "").check(host.encode())


def test_listed_names_are_allowed() -> None:
    check = HostCheck("127.0.0.1", "attendant.example, Other.example")
    for host in ("attendant.example:443", "other.example", "localhost"):
        check.check(host.encode())


def test_patterns_and_wildcards() -> None:
    check = HostCheck("127.0.0.1", "*.example")
    for host in ("a.example", "b.a.example:443", "localhost"):
        check.check(host.encode())
    for host in ("example", "badexample", "a.example.org"):
        with pytest.raises(HostNotAllowed):
            check.check(host.encode())
    HostCheck("127.0.0.1", "*").check(b"any.example")


@pytest.mark.parametrize(
    "hosts", ["a*.example", "*example", "**", '""', "a..b", "*.", "münchen.example", "a.example:80"]
)
def test_lists_that_match_nothing_are_errors(hosts: str) -> None:
    with pytest.raises(
        ConfigError, match=r"ATTENDANT_ALLOWED_HOSTS: .* is not a host name or an address without a port"
    ):
        load_settings([], {"ATTENDANT_ALLOWED_HOSTS": hosts})


async def test_probe_of_http_1_0_needs_no_host(model: LoadedModel) -> None:
    """The browser of a victim of DNS rebinding always sends one."""
    async with open_harness(model) as harness:
        app = make_app(harness.lifecycle, harness.settings, harness.metrics)
        for request, status in (
            (b"GET /readyz HTTP/1.0\r\n\r\n", 200),
            (b"GET /readyz HTTP/1.0\r\nHost: evil.example\r\n\r\n", 403),
            (b"GET /readyz HTTP/1.0\r\nHost: \r\n\r\n", 403),
        ):
            async with serving(app) as (reader, writer):
                writer.write(request)
                assert (await reader.readline()).split()[1] == str(status).encode()


def test_any_name_is_allowed_beyond_loopback_without_a_list() -> None:
    HostCheck("0.0.0.0", "").check(b"any.example")


def test_list_applies_beyond_loopback() -> None:
    check = HostCheck("0.0.0.0", "attendant.example")
    check.check(b"attendant.example")
    for host in ("any.example", "localhost"):
        with pytest.raises(HostNotAllowed):
            check.check(host.encode())


@pytest.mark.parametrize("path", ["/", "/v1/model", "/livez", "/docs", "/v1/embeddings"])
def test_every_route_checks_the_host(rest: httpx.Client, path: str) -> None:
    response = rest.get(path, headers={"host": "evil.example"})
    assert response.status_code == 403
    assert "evil.example" in response.text


async def test_cross_origin_headers_are_absent_by_default(model: LoadedModel) -> None:
    async with open_harness(model) as harness:
        response = await harness.post("/v1/encode", {"inputs": GOLDEN}, origin=ORIGIN)
        assert response.status_code == 200
        assert "access-control-allow-origin" not in response.headers


async def test_allowed_origin_gets_cross_origin_headers(model: LoadedModel) -> None:
    """The openai package for JavaScript sends its version in headers, and reads `x-should-retry`."""
    requested = "authorization,content-type,x-stainless-lang,x-stainless-retry-count"
    async with open_harness(model, cors_origins=f"{ORIGIN}, https://other.example") as harness:
        preflight = await harness.client.options(
            "/v1/encode",
            headers={
                "origin": ORIGIN,
                "access-control-request-method": "POST",
                "access-control-request-headers": requested,
            },
        )
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, ORIGIN)
        assert preflight.headers["access-control-allow-headers"] == requested
        response = await harness.post("/v1/encode", {"inputs": GOLDEN}, origin=ORIGIN)
        assert response.headers["access-control-allow-origin"] == ORIGIN
        exposed = response.headers["access-control-expose-headers"]
        assert {"x-request-id", "x-should-retry"} <= set(exposed.split(", "))
        other = await harness.post("/v1/encode", {"inputs": GOLDEN}, origin="https://evil.example")
        assert "access-control-allow-origin" not in other.headers
