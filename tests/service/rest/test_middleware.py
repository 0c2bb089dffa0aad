"""Round every route: unknown paths and methods, request ids, unforeseen faults, and what OpenAPI says."""

import re
import socket

import httpx
import pytest

from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import EncodeRequest, EncodeResponse
from tests.service.conftest import GOLDEN, House, open_house

ROUTES = {
    ("post", "/v1/encode"),
    ("post", "/v1/tokenize"),
    ("post", "/v1/attend"),
    ("post", "/v1/compare"),
    ("get", "/v1/model"),
    ("post", "/v1/embeddings"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{name}"),
    ("get", "/livez"),
    ("get", "/readyz"),
}


@pytest.mark.parametrize("path", ["/nothing", "/v1", "/v1/encode2", "/v2/..%2f..%2fetc", "/v1/model/%00",
                                  "/v1/../nothing", "/static/../../etc/passwd", "/" + "a" * 2000])  # fmt: skip
def test_unknown_routes(rest: httpx.Client, path: str) -> None:
    """404 in our own words, without the path."""
    answer = rest.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["reason"] == "no_such_route"
    assert len(answer.content) <= 1024


@pytest.mark.parametrize(("method", "path", "allowed"), [("GET", "/v1/encode", "OPTIONS, POST"),
                                                         ("HEAD", "/v1/encode", "OPTIONS, POST"),
                                                         ("DELETE", "/v1/model", "GET, HEAD, OPTIONS"),
                                                         ("PUT", "/v1/embeddings", "OPTIONS, POST"),
                                                         ("POST", "/readyz", "GET, HEAD, OPTIONS"),
                                                         ("POST", "/v1/models/a", "GET, HEAD, OPTIONS"),
                                                         ("POST", "/docs", "GET, HEAD, OPTIONS")])  # fmt: skip
def test_wrong_methods(rest: httpx.Client, method: str, path: str, allowed: str) -> None:
    """405 and what is allowed."""
    answer = rest.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("sent", ["abc-1.2_3", "a" * 128])
def test_request_id_is_returned(rest: httpx.Client, sent: str) -> None:
    """In answers and errors alike."""
    for path in ("/v1/model", "/nothing", "/livez"):
        assert rest.get(path, headers={"x-request-id": sent}).headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", [b"", b"a b", b"a" * 129, b'"><script>', b"\xff\xfe", b"{}"])
def test_hostile_request_id_is_replaced(rest: httpx.Client, sent: bytes) -> None:
    """By one of ours, each time another."""
    made = [rest.get("/nothing", headers=[(b"x-request-id", sent)]) for _ in range(2)]
    assert all(re.fullmatch(r"[0-9a-f]{16}", answer.headers["x-request-id"]) for answer in made)
    assert made[0].headers["x-request-id"] != made[1].headers["x-request-id"]
    assert made[0].json()["error"]["request_id"] == made[0].headers["x-request-id"]


def test_openapi_lists_the_running_routes(rest: httpx.Client) -> None:
    """No more, no fewer, and each answers something else than 404 and 405."""
    described = rest.get("/openapi.json").json()["paths"]
    assert {(method, path) for path, methods in described.items() for method in methods} == ROUTES
    for method, path in ROUTES:
        assert rest.request(method, path.replace("{name}", "all-MiniLM-L6-v2")).status_code not in (404, 405)


def test_openapi_describes_the_bodies(rest: httpx.Client) -> None:
    """With every field of the contract, and none beside them."""
    document = rest.get("/openapi.json").json()
    body = document["paths"]["/v1/encode"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = document["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    assert set(schema["properties"]) == {
        "model", "inputs", "outputs", "layers", "layer_reduce", "pooling", "normalize", "dimensions", "truncation",
        "encoding", "dtype",
    }  # fmt: skip
    assert (schema["required"], schema["additionalProperties"]) == (["inputs"], False)


def test_openapi_points_nowhere(rest: httpx.Client) -> None:
    """Every $ref resolves inside the document, so that client generators can read it."""
    document = rest.get("/openapi.json").json()
    for reference in set(re.findall(r'"\$ref":"([^"]+)"', rest.get("/openapi.json").text.replace(" ", ""))):
        found = document
        for step in reference.removeprefix("#/").split("/"):
            assert step in found, reference
            found = found[step]


def test_docs_are_served(rest: httpx.Client) -> None:
    """For people."""
    assert "swagger" in rest.get("/docs").text.lower()


async def test_docs_can_be_switched_off(model: LoadedModel) -> None:
    """Then neither the page nor the document is there."""
    async with open_house(model, docs=False) as house:
        assert [(await house.client.get(path)).status_code for path in ("/docs", "/openapi.json")] == [404, 404]


async def test_unhandled_exception_is_logged_and_not_returned(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """500 with the request id; the log has the rest."""

    async def broken(request: EncodeRequest) -> EncodeResponse:
        raise KeyError("/home/secret/path")

    house.engine.encode = broken  # type: ignore[method-assign]
    answer = await house.post("/v1/encode", {"inputs": GOLDEN}, **{"x-request-id": "lost-1"})
    assert (answer.status_code, answer.json()["error"]["reason"]) == (500, "internal")
    assert "secret" not in answer.text
    assert "KeyError" in caplog.text
    assert {getattr(record, "request_id", None) for record in caplog.records} == {"lost-1"}


def exchange(rest: httpx.Client, sent: bytes) -> bytes:
    """Raw bytes in, all that comes back until the server closes."""
    with socket.create_connection((rest.base_url.host, rest.base_url.port), timeout=20) as line:
        line.sendall(sent)
        return b"".join(iter(lambda: line.recv(65536), b""))


FRAMINGS = {
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6",
    "negative length": b"Content-Length: -1",
    "length and chunked": b"Content-Length: 5\r\nTransfer-Encoding: chunked",
}


@pytest.mark.parametrize("head", FRAMINGS.values(), ids=FRAMINGS)
def test_ambiguous_framing_is_refused(rest: httpx.Client, head: bytes) -> None:
    """400 and the connection is closed: no request can hide behind another."""
    sent = b"POST /v1/encode HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n" + head + b"\r\n\r\nhello"
    found = exchange(rest, sent)
    assert found.startswith(b"HTTP/1.1 400")
    assert found.count(b"HTTP/1.1") == 1
